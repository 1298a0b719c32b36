"""``debubble profile``: measure the stages of a model, and write a cost file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from debubble.cli.app import command
from debubble.cli.errors import require_torch
from debubble.cli.options import AsJson, Text, switch, takes, writes
from debubble.cli.output import COST_FILES, check_output, note, print_json
from debubble.cli.progress import phases as progress
from debubble.core.errors import ParameterError
from debubble.core.options import read_whole

if TYPE_CHECKING:
    from debubble.torch.measure.profile import Profile

DEVICES = ("auto", "cpu", "cuda")

MOST = 100_000
"""Largest number of an option."""


def profile(
    model: Annotated[str, takes("MODEL", "file.py:function, or config.json of Hugging Face.")],
    ranks: Annotated[str, takes("N", "Number of pipeline ranks.", "--ranks", "-p")],
    chunks: Annotated[str, takes("N", "Stages per rank.", "--chunks", "-v")] = "1",
    microbatches: Annotated[
        Text,
        takes("N", "Microbatches per training step, for the cost file.", "--microbatches", "-m"),
    ] = None,
    steps: Annotated[str, takes("N", "Number of measurements.")] = "20",
    device: Annotated[str, takes("NAME", "Device: auto, cpu or cuda.")] = "auto",
    rows: Annotated[str, takes("N", "Sequences per microbatch (config.json).")] = "1",
    tokens: Annotated[Text, takes("N", "Tokens per sequence, at most 1024 (config.json).")] = None,
    dtype: Annotated[
        Text, takes("NAME", "Type of the weights: bfloat16, float32, … (config.json).")
    ] = None,
    no_layers: Annotated[bool, switch("--no-layers", "Do not measure single layers.")] = False,
    output: Annotated[Text, writes("Cost file to write: .yaml or .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the time and memory of a model's stages.

    Runs the stages one after the other in this process. Prints the times of F, I, W and B, the
    memory they hold, and the gain from splitting the backward. -o writes a file for --costs.
    """
    p, v = read_whole("-p", ranks, 1, MOST), read_whole("-v", chunks, 1, MOST)
    sizes: dict[str, Any] = {"ranks": p, "chunks": v}
    if microbatches is not None:
        sizes["microbatches"] = read_whole("-m", microbatches, 1, MOST)
    check_output("-o", output, *COST_FILES)
    count = read_whole("--steps", steps, 1, MOST)
    of_config = {"rows": read_whole("--rows", rows, 1, MOST), "dtype": dtype,
                 "tokens": None}  # fmt: skip
    if tokens is not None:
        of_config["tokens"] = read_whole("--tokens", tokens, 1, MOST)
    with progress(p * v + 1) as step:
        step(f"building {model}")
        measured, name = _measured(model, p * v, count, device, not no_layers, of_config, step)
    data = measured.data(name=name, **sizes)
    if output is not None:
        measured.save(output, name=name, **sizes)
    if as_json:
        print_json(data)
    else:
        print(measured)
    if output is not None:
        many = "" if microbatches is not None else " -m 8"
        cut = " --layers costs" if "layers" in data else ""
        note(f"wrote {output}; try: debubble optimize --costs {output}{many}{cut}")


def _measured(
    model: str, stages: int, steps: int, device: str, layers: bool, of_config: dict[str, Any],
    step: Callable[[str], None],
) -> tuple[Profile, str]:  # fmt: skip
    """Return the profile of a model, and the model's name."""
    from debubble.interchange.files import is_function
    from debubble.interchange.python_file import split_target, user_code

    require_torch()
    from debubble.torch.measure.profile import profile as measure

    options: dict[str, Any] = {
        "steps": steps, "device": _device(device), "layers": layers, "report": step,
    }  # fmt: skip
    if model.lower().endswith(".json"):
        from debubble.torch.models.build import from_config

        made, name = from_config(model, stages, **of_config)
        return measure(made.stages, made.loss, *made.data(0), **options), name
    if not is_function(model):
        raise ParameterError(f"--model is '{model}'; give file.py:function, or a config.json")
    from debubble.torch.models.build import build

    path, name = split_target(model)
    with user_code(model, path):
        made = build(model, stages)
        return measure(made.stages, made.loss, *made.data(0), **options), name


def _device(name: str) -> str | None:
    import torch

    if name not in DEVICES:
        raise ParameterError(f"--device is '{name}'; use {', '.join(DEVICES)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ParameterError("--device is 'cuda', and PyTorch finds none; use cpu")
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else None


app = command(
    profile,
    [
        "profile --model examples/model.py:build -p 4 -v 2 -o measured.yaml",
        "profile --model examples/model.py:build -p 4 --steps 5 --no-layers",
        "profile --model examples/model.py:build -p 2 -m 8 --steps 5 --json",
    ],
)
