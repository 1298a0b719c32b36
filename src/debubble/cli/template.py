"""A Python file with a schedule to start from."""

from __future__ import annotations

from pathlib import Path

from debubble.cli.output import check_output
from debubble.core.errors import ParameterError

TEMPLATE = '''"""A schedule of my own: what every rank does, in order.

An action is <stage><kind><microbatch>: 0F1 is the forward of microbatch 1 in stage 0. F is a
forward, B a backward; or I and W, the parts of a backward for the input and for the weights.
"""


def order(*, ranks, microbatches, warm_up: int = 1):
    """1F1B with `warm_up` forwards more in flight than it needs: --option warm_up=2."""
    for rank in range(ranks):  # here stage s is on rank s
        ahead = min(ranks - rank - 1 + warm_up, microbatches)
        program = [f"{rank}F{m}" for m in range(ahead)]
        for m in range(microbatches):
            if ahead + m < microbatches:
                program.append(f"{rank}F{ahead + m}")
            program.append(f"{rank}B{m}")
        yield program
'''
"""The file. It yields a list of texts per rank, the simplest form that can be read."""

NEXT = (
    ("check {0}:order -p 4 -m 8", "is it complete, and free of deadlocks?"),
    ("draw {0}:order -p 4 -m 8", "what it looks like"),
    ("simulate {0}:order -p 4 -m 8", "time, bubble and memory"),
    ("compare {0}:order 1f1b zb-h1 -p 4 -m 8", "is it faster than others?"),
    ("run {0}:order -p 4 -m 8", "on PyTorch, with its gradients checked"),
)
"""Commands for the file, and the purpose of each."""


def write_template(path: str) -> str:
    """Write a new file that ends in .py; return a text with commands for it."""
    check_output("--from-template", path, (".py",), "a schedule of your own is a .py file")
    if Path(path).exists():
        raise ParameterError(f"'{path}' exists; name another file, or remove it")
    Path(path).write_text(TEMPLATE, encoding="utf-8")
    commands = [f"debubble {words.format(path)}" for words, _ in NEXT]
    width = max(map(len, commands))
    lines = [f"  {c:<{width}}   {why}" for c, (_, why) in zip(commands, NEXT, strict=True)]
    return "\n".join([f"wrote {path}, a schedule that you can change; next:", *lines])
