"""Arguments of Megatron-LM as the values that its configuration has after parsing."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable
from typing import Any

RENAMED = {
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
}
"""Arguments whose values have another name."""

LISTS = ("recompute_modules",)
"""Arguments that take several words."""


def argument_values(lines: Iterable[str]) -> dict[str, Any]:
    """Return the values of arguments by the names that they have after parsing.

    Examples
    --------
    >>> argument_values(["--bf16", "--fp8-format hybrid", "--seq-length 4096"])
    {'bf16': True, 'fp8': 'hybrid', 'seq_length': 4096}
    """
    found: dict[str, Any] = {}
    for line in lines:
        words = shlex.split(line, comments=True)
        if not words:
            continue
        flag, *given = words
        name = flag.removeprefix("--").replace("-", "_")
        if name == "disable_bias_linear":
            found["add_bias_linear"] = False
        elif name in LISTS:
            found[name] = given
        else:
            found[RENAMED.get(name, name)] = _value(given[0]) if given else True
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
