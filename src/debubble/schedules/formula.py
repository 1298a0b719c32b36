"""Formulas of closed forms: values and terms, by way of Python, and the legend of their symbols.

A formula is a sum of products of numbers, symbols, ``min`` and ``max``, ``⌈x⌉``, ``⌊x⌋`` and
``|x|``; neighbors are multiplied, as in ``2(p − 1)c``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

SYMBOLS = {
    "p": "ranks",
    "m": "microbatches",
    "v": "chunks",
    "s": "slices",
    "r": "rank, from 0",
    "g": "microbatches in a group",
    "U": "units of microbatches that repeat",
    "F": "forward",
    "I": "backward for input",
    "W": "backward for weights",
    "B": "full backward",
    "O": "overlapped pair",
    "S": "first pass of the output layer",
    "T": "second pass of the output layer",
    "R": "recompute",
    "c": "latency of a transfer",
    "q": "share that a recompute keeps",
}
"""Meanings of the letters in formulas; times are of one action: one stage, one microbatch."""

_TIMES = "FIWBOSTR"
_SYMBOL = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_TOKEN = re.compile(r"\s*(\d+\.?\d*|[A-Za-z]+|//|[-+−·×/(),|⌈⌉⌊⌋])")
_PYTHON = {"−": "-", "·": "*", "×": "*", "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")"}
_FUNCTIONS = {
    "min": lambda *values: reduce(np.minimum, values),
    "max": lambda *values: reduce(np.maximum, values),
    "ceil": np.ceil, "floor": np.floor, "abs": abs,
}  # fmt: skip


def legend(texts: Iterable[str]) -> str:
    """Return the legend of the symbols that occur in formulas.

    Examples
    --------
    >>> legend(["(m + p − 1)(F + B)"])
    'p ranks, m microbatches; times of an action: F forward, B full backward'
    """
    formulas = (re.sub(r" \([a-z]{2,} .*\)", "", text) for text in texts)
    letters = {letter for text in formulas for letter in _SYMBOL.findall(text)}
    found = [symbol for symbol in SYMBOLS if symbol in letters]
    sizes = [f"{symbol} {SYMBOLS[symbol]}" for symbol in found if symbol not in _TIMES]
    times = [f"{symbol} {SYMBOLS[symbol]}" for symbol in found if symbol in _TIMES]
    parts = [", ".join(sizes)] if sizes else []
    parts += [f"times of an action: {', '.join(times)}"] if times else []
    return "; ".join(parts)


def terms(text: str, values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the terms of the sum that a formula is, each with its sign and value.

    Words after the formula, from a comma or ``with`` on, are left out. Empty when the text is no
    such formula, or a symbol has no value.

    Examples
    --------
    >>> terms("m(F + B) − (p − 1)c, with B + R for B", dict(m=8, p=4, F=1, B=2, c=0.5))
    [('m(F + B)', 24.0), ('− (p − 1)c', -1.5)]
    """
    found, rest = _split(text, values)
    if rest and not rest.startswith((",", "with ")):
        return []
    try:
        return [(term, float(_evaluate(code, values))) for term, code in found]
    except (SyntaxError, NameError, ZeroDivisionError):
        return []


def value_of(text: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a formula: a number, or an array where some symbol's value is one.

    Examples
    --------
    >>> value_of("min(p − r, m)", dict(p=4, m=3, r=np.arange(4))).tolist()
    [3, 3, 2, 1]
    """
    return sum(_evaluate(code, values) for _, code in _split(text, values)[0])


def _evaluate(code: str, values: Mapping[str, Any]) -> Any:
    # The texts are those of registered schedules, which are Python code themselves.
    return eval(code, {"__builtins__": {}}, _FUNCTIONS | dict(values))


def _split(text: str, names: Iterable[str]) -> tuple[list[tuple[str, str]], str]:
    """Split a formula into terms, as they stand there and in Python, and what follows it."""
    names = _FUNCTIONS.keys() | set(names)
    found: list[tuple[str, str]] = []
    begin = at = depth = bars = 0
    code = last = ""
    while match := _TOKEN.match(text, at):
        token = _PYTHON.get(match[1], match[1])
        if token == "|":
            bars = 1 - bars
            token = "abs(" if bars else ")"
        if (token == "," and not depth) or (token.isalpha() and token not in names):
            break
        if token in ("+", "-") and not depth and code:
            found.append((text[begin:at].strip(), code))
            begin = match.end() if token == "+" else at
            code = "" if token == "+" else token
        else:
            ends = (last.isalnum() and last not in _FUNCTIONS) or last == ")"
            begins = token[0].isalnum() or token == "("
            code += "*" * (ends and begins) + token
        depth += token.endswith("(") - (token == ")")
        at, last = match.end(), token
    return [*found, (text[begin:at].strip(), code)], text[at:].strip()
