"""Formulas as they stand in the texts of closed forms: their terms, one by one, and their symbols.

A formula is a sum of products of numbers, symbols, ``min`` and ``max``, ``⌈x⌉``, ``⌊x⌋`` and
``|x|``; what stands side by side is multiplied, as in ``2(p − 1)c``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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
_TOKEN = re.compile(r"\s*(\d+\.?\d*|[A-Za-z]+|//|[-+−·×/(),|⌈⌉⌊⌋])")
_SYMBOL = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {"min": np.minimum, "max": np.maximum}
_BRACKETS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "(": (")", lambda value: value), "⌈": ("⌉", np.ceil), "⌊": ("⌋", np.floor), "|": ("|", abs),
}  # fmt: skip


def legend(texts: Iterable[str]) -> str:
    """Legend of the symbols that occur in formulas.

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
    """The terms of the sum that a formula is, each with its sign and value.

    Parameters
    ----------
    text
        The formula; words after it, from a comma or ``with`` on, are left out.
    values
        Numbers for its symbols.

    Returns
    -------
    list of (str, float)
        Empty when the text is no such formula, or a symbol has no value.

    Examples
    --------
    >>> terms("m(F + B) − (p − 1)c, with B + R for B", dict(m=8, p=4, F=1, B=2, c=0.5))
    [('m(F + B)', 24.0), ('− (p − 1)c', -1.5)]
    """
    try:
        return _Reader(text, values).terms()
    except (_NotAFormulaError, ZeroDivisionError):
        return []


def value_of(text: str, values: Mapping[str, Any]) -> Any:
    """The value of a formula: a number, or an array where some symbol's value is one.

    Examples
    --------
    >>> value_of("min(p − r, m)", dict(p=4, m=3, r=np.arange(4))).tolist()
    [3.0, 3.0, 2.0, 1.0]
    """
    return _Reader(text, values).sum()


class _NotAFormulaError(Exception):
    """The text is no formula, or has symbols without values."""


class _Reader:
    """Reads a formula from left to right."""

    def __init__(self, text: str, values: Mapping[str, Any]) -> None:
        self.text = text
        self.values = values
        self.at = 0
        self.open_bars = 0

    def terms(self) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        sign, begin = 1.0, 0
        while True:
            value = sign * float(self.product())
            found.append((self.text[begin : self.at].strip(), value))
            begin = self.at
            token = self.peek()
            if token not in ("+", "-", "−"):
                break
            self.take()
            sign = 1.0 if token == "+" else -1.0
            begin = self.at if token == "+" else begin
        rest = self.text[self.at :].strip()
        if rest and not rest.startswith((",", "with ")):
            raise _NotAFormulaError
        return found

    def sum(self) -> Any:
        value = self.product()
        while self.peek() in ("+", "-", "−"):
            value += self.product() if self.take() == "+" else -self.product()
        return value

    def product(self) -> Any:
        value = self.factor()
        while True:
            token = self.peek()
            if token in ("·", "×"):
                self.take()
                value *= self.factor()
            elif token == "/":
                self.take()
                value /= self.factor()
            elif token == "//":
                self.take()
                value //= self.factor()
            elif self.begins(token):
                value *= self.factor()
            else:
                return value

    def begins(self, token: str) -> bool:
        """Whether a factor begins here."""
        if token == "|":
            return self.open_bars == 0
        return token in ("(", "⌈", "⌊") or token in self.values or token in _FUNCTIONS

    def factor(self) -> Any:
        token = self.take()
        if token in _FUNCTIONS:
            self.expect("(")
            arguments = [self.sum()]
            while self.peek() == ",":
                self.take()
                arguments.append(self.sum())
            self.expect(")")
            return reduce(_FUNCTIONS[token], arguments)
        if token in _BRACKETS:
            closing, function = _BRACKETS[token]
            self.open_bars += token == "|"
            value = self.sum()
            self.open_bars -= token == "|"
            self.expect(closing)
            return function(value)
        if token in self.values:
            return self.values[token] * 1.0
        if token[:1].isdigit():
            return float(token)
        raise _NotAFormulaError

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match[1] if match else ""

    def take(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if not match:
            raise _NotAFormulaError
        self.at = match.end()
        return match[1]

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise _NotAFormulaError
