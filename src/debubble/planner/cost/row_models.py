"""Cells of measured rows, and their models: by shape, or by the name of a shipped one or file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from debubble.core.errors import FormatError, did_you_mean
from debubble.core.units import read_number
from debubble.planner.cost.measured_run import LARGEST
from debubble.planner.model.config_keys import MOST_LAYERS
from debubble.planner.model.files import ENDINGS, read_model, shipped_models
from debubble.planner.model.mixers import Attention
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model

MODEL_COLUMNS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "topk",
)  # fmt: skip
"""Columns of whole numbers that describe a model."""

MODEL_WORDS = ("gated", "tied", "dropout", "norm")
"""Columns of words that describe it: yes or no, and rms or layer for the norm."""

VOCABULARY = 51200
"""Vocabulary where a row has none: GPT-2's, padded as Megatron pads it for 8 ranks."""


OPEN = ("", "na", "n/a", "nan", "none", "-", "?")
"""Cells that leave a number open."""

Value = TypeVar("Value")


class Cells:
    """Texts of one row, with a list of the columns that were open."""

    def __init__(self, row: Mapping[str, str], where: str) -> None:
        self.row, self.where = row, where
        self.assumed: list[str] = []

    def text(self, column: str) -> str:
        """Return the text of a cell in lower case; empty where there is none."""
        return (self.row.get(column) or "").strip().lower()

    def word(self, column: str) -> str:
        """Return the first word of a cell, without remarks."""
        return re.split(r"[\s(+]", self.text(column), maxsplit=1)[0]

    def assume(self, column: str, value: Value) -> Value:
        """Return a value for an open column, which is noted."""
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        self.assumed.append(f"{column} {shown}")
        return value

    def whole(self, column: str) -> int | None:
        """Return a whole number; None for a cell of :data:`OPEN`."""
        text = self.text(column)
        if text in OPEN:
            return None
        number = read_number(text)
        if math.isnan(number) or not 1 <= number <= LARGEST or number != int(number):
            raise FormatError(
                f"{self.where}: {column} '{text}' is no whole number from 1 to {LARGEST:,}"
            )
        return int(number)

    def amount(self, column: str, unit: float = 1.0) -> float | None:
        """Return a positive number; None for anything else."""
        number = read_number(self.text(column) or "nan")
        return number * unit if 0 < number < math.inf else None

    def flag(self, column: str, default: bool) -> bool:
        """Return a yes or no."""
        text = self.text(column)
        if not text:
            return self.assume(column, default)
        if text not in ("yes", "no"):
            raise FormatError(f"{self.where}: {column} '{text}'; give yes or no")
        return text == "yes"


def known_model(name: str) -> Model | None:
    """Return the model of a shipped name, in any spelling of it, or of a file; else None.

    Examples
    --------
    >>> known_model("DeepSeekV3").name, known_model("a model of ours")
    ('deepseek-v3', None)
    """
    if name.lower().endswith(ENDINGS):
        return read_model(name)
    return _shipped(_plain(name))


@cache
def _shipped(plain: str) -> Model | None:
    found = next((name for name in shipped_models() if _plain(name) == plain), None)
    return None if found is None else read_model(found)


def _plain(name: str) -> str:
    """Return the letters and digits of a name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def row_model(
    name: str, numbers: Mapping[str, int | None], cells: Cells, base: Model | None = None
) -> Model:
    """Return the model of a row's columns; a known one by its name where they agree with it.

    A row without a name or with the name of `base` is of that, unless its columns differ.
    """
    _check_words(cells)
    known = known_model(name)
    if known is None and base is not None and _plain(name) in ("", _plain(base.name)):
        known = base
    if known is not None and _agrees(known, numbers, cells):
        if not name:
            cells.assume("model", known.name)
        return known
    missing = [key for key in ("layers", "hidden", "heads", "ffn") if not numbers.get(key)]
    if missing:
        if known is not None:
            other = f"the row's shape is not that of {known.name}"
        else:
            other = f"unknown model '{name}', {did_you_mean(name, shipped_models())}"
        raise FormatError(f"{cells.where}: {', '.join(missing)} not given; {other}")
    layers, hidden, heads, ffn = (
        int(numbers[key] or 0) for key in ("layers", "hidden", "heads", "ffn")
    )
    if layers > MOST_LAYERS:
        raise FormatError(f"{cells.where}: {layers} layers; at most {MOST_LAYERS} are predicted")
    kv_heads, head_dim = numbers["kv_heads"], numbers["head_dim"] or max(hidden // heads, 1)
    if kv_heads is None:
        kv_heads = cells.assume("kv_heads", heads)
    vocabulary = numbers["vocab"] or cells.assume("vocab", VOCABULARY)
    gated = cells.flag("gated", True)
    norm = cells.text("norm") or cells.assume("norm", "rms")
    mlp: Mlp | Experts = Mlp(ffn, gated)
    if numbers["experts"]:
        top_k = numbers["topk"] or cells.assume("topk", 2)
        mlp = Experts(numbers["experts"], top_k, ffn, gated)
    layer = Layer(Attention(heads, kv_heads, head_dim), mlp)
    return Model(
        name, hidden, (layer,) * layers, vocabulary, tied=cells.flag("tied", False), norm=norm,
        dropout=cells.flag("dropout", False),
    )  # fmt: skip


def _check_words(cells: Cells) -> None:
    """Refuse a word that says nothing, also where the model is known by its name."""
    for key in MODEL_WORDS:
        text, words = cells.text(key), ("rms", "layer") if key == "norm" else ("yes", "no")
        if text and text not in words:
            raise FormatError(f"{cells.where}: {key} '{text}'; give {' or '.join(words)}")


def _agrees(model: Model, numbers: Mapping[str, int | None], cells: Cells) -> bool:
    """Return whether no given column contradicts a model."""
    last = model.layers[-1]
    attention, mlp = last.attention, last.mlp
    own: dict[str, object] = {
        "layers": len(model.layers), "hidden": model.hidden, "heads": attention.heads,
        "vocab": model.vocabulary, "ffn": mlp.width,
    }  # fmt: skip
    if isinstance(attention, Attention):
        own |= {"kv_heads": attention.kv_heads, "head_dim": attention.head_dim}
    if isinstance(mlp, Experts):
        own |= {"experts": mlp.count, "topk": mlp.top_k}
    elif numbers["experts"]:
        return False
    words = {"gated": mlp.gated, "tied": model.tied, "dropout": model.dropout}
    said = {key: "yes" if value else "no" for key, value in words.items()} | {"norm": model.norm}
    return all(numbers[key] in (None, value) for key, value in own.items()) and all(
        cells.text(key) in ("", value) for key, value in said.items()
    )
