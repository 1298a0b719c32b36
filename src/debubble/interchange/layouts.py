"""The layers of every stage, as other programs write them.

Megatron-LM takes a string, ``--pipeline-model-parallel-layout``: a letter per layer (``E`` the
embedding, ``t`` a decoder layer, ``m`` one of multi-token prediction, ``L`` the loss), a bar
between stages, ``x*n`` for n times a letter and ``(...)*n`` for n times a group; commas mean
nothing, a stage may be empty. Stage s is on rank s mod p, so that a V cannot be written. Layers of
multi-token prediction are on one stage, after all others. The grammar is that of
``PipelineParallelLayerLayout.parse_str_to_list`` of Megatron Core 0.19; groups hold no groups.
torchtitan and NeMo Automodel take the names of every stage's modules, in stage order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from debubble.core.errors import FormatError, ParameterError
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.interchange.schedule_json import parse_json
from debubble.interchange.text import read_text

LONGEST_GROUP = 8
"""Stages that are looked at as a group that repeats."""

MOST_LETTERS = 20_000
"""Most letters and bars of a layout, once all repetitions are written out."""

MODULES = ".modules.json"
"""Ending of a file with the modules of every stage; the rest of its name is the schedule's."""

MAX_BYTES = 16 << 20
"""Longest such file that is read."""

LONGEST_SHOWN = 60
"""Characters of a layout that messages show."""

EXAMPLE = "Et*4|t*4L"
"""Layout of 8 layers on 2 stages."""

LETTERS = {
    "E": "the embedding", "t": "a layer", "m": "one of multi-token prediction", "L": "the loss",
}  # fmt: skip
"""Letters of a layout, in words."""


@dataclass(frozen=True)
class ModuleNames:
    """Names of the modules of a decoder model in a program."""

    first: tuple[str, ...]
    """Modules of the first stage."""
    layer: str
    """Name of a layer, with ``{}`` for its number."""
    last: tuple[str, ...]
    """Modules of the last stage."""
    every: tuple[str, ...] = ()
    """Modules of every stage."""

    def of(self, cut: Sequence[int]) -> list[list[str]]:
        """Return the modules of every stage; `cut` has the number of layers of each.

        Examples
        --------
        >>> TORCHTITAN.of([1, 2])
        [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
        """
        stages, layer = [], 0
        for stage, count in enumerate(cut):
            names = [self.layer.format(number) for number in range(layer, layer + count)]
            layer += count
            names = [*self.first, *names] if stage == 0 else names
            stages.append([*names, *(self.last if stage == len(cut) - 1 else ()), *self.every])
        return stages


TORCHTITAN = ModuleNames(("tok_embeddings",), "layers.{}", ("norm", "lm_head"))
TORCHTITAN_0_2 = ModuleNames(("tok_embeddings",), "layers.{}", ("norm", "output"))
"""Up to version 0.2.2 the head has another name."""
AUTOMODEL = ModuleNames(
    ("model.embed_tokens",), "model.layers.{}", ("model.norm", "lm_head"), ("model.rotary_emb",)
)

PROGRAMS = {"torchtitan": TORCHTITAN, "torchtitan<=0.2.2": TORCHTITAN_0_2, "automodel": AUTOMODEL}


@dataclass(frozen=True)
class Layout:
    """Layers of every stage, and the place of multi-token prediction."""

    cut: tuple[int, ...]
    """Decoder layers of every stage, in stage order."""
    mtp: int = 0
    """Layers of multi-token prediction."""
    mtp_stage: int | None = None
    """Their stage; None for the last one, where the loss is."""

    def __str__(self) -> str:
        return layout_text(self.cut, self.mtp, self.mtp_stage)


def is_layout(text: str) -> bool:
    """Return whether a text is meant as a layout string, not as numbers of layers."""
    return bool(re.search(r"[EtmL|*()]", text))


def read_layout(text: str) -> Layout:
    """Return the layout that Megatron-LM's string describes.

    Refused with the nearest layout: letters that are not known, and what stages cannot have: an
    embedding or a loss elsewhere than at the ends, or more than one of them, and multi-token
    prediction on several stages or before other layers.

    Examples
    --------
    >>> read_layout("Et*3|(tt|)*2,m|L")
    Layout(cut=(3, 2, 2, 0, 0), mtp=1, mtp_stage=3)
    """
    cells = _unrolled(text).split("|")
    letters = "".join(cells)
    if unknown := re.search("[^EtmL]", letters):
        known = ", ".join(f"{letter} {words}" for letter, words in LETTERS.items())
        raise ParameterError(
            f"the layout '{_short(text)}' has '{unknown[0]}'; letters are {known}, with | between "
            "stages, t*3 and (tt|)*3 for repetitions"
        )
    places = {letter: [at for at, cell in enumerate(cells) if letter in cell] for letter in "tm"}
    found = Layout(tuple(cell.count("t") for cell in cells), letters.count("m"))
    if found.mtp:
        stage = max(places["m"] + places["t"])
        found = Layout(found.cut, found.mtp, None if stage == len(cells) - 1 else stage)
    fault = _fault(cells, len(places["m"]))
    if fault:
        # Without a layer there is none near that a model could have.
        near = f"the nearest is '{found}'" if sum(found.cut) else f"it is such as '{EXAMPLE}'"
        raise ParameterError(f"the layout '{_short(text)}' {fault}; {near}")
    return found


def _fault(cells: Sequence[str], of_mtp: int) -> str:
    """Return what stages cannot have; empty for nothing. `of_mtp` are those with an m."""
    letters = "".join(cells)
    for letter, end, name in (("E", 0, "first"), ("L", -1, "last")):
        if letters.count(letter) != 1:
            number = letters.count(letter) or "no"
            return f"has {number} {letter}; {LETTERS[letter]} is there once, on the {name} stage"
        if cells[end][end : end + 1 or None] != letter:
            side = "before" if letter == "E" else "after"
            return f"has something {side} {letter}; {LETTERS[letter]} is {name} on the {name} stage"
    if "m" in letters and "t" in letters[letters.index("m") :]:
        return "has t after m; multi-token prediction comes after all layers"
    if of_mtp > 1:
        return f"has m on {of_mtp} stages; all of multi-token prediction is on one"
    return ""


def _unrolled(text: str) -> str:
    """Return a layout with its repetitions written out: groups first, then letters."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*([0-9]+)", r"(.)\*([0-9]+)"):
        many = sum(len(one) * int(times[:9]) for one, times in re.findall(pattern, text))
        if many > MOST_LETTERS:
            raise ParameterError(
                f"the layout '{_short(text)}' has more than {MOST_LETTERS:,} letters; that is the "
                "most"
            )
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def layout_text(cut: Sequence[int], mtp: int = 0, mtp_stage: int | None = None) -> str:
    """Return the layout string of a cut for Megatron-LM.

    `mtp` are layers of multi-token prediction, on the stage `mtp_stage`, by default the last.

    Examples
    --------
    >>> layout_text([3, *[2] * 29, 0, 0], mtp=1, mtp_stage=30)
    'Et*3|(tt|)*29m|L'
    """
    stages = ["t" * count for count in cut]
    stages[0] = "E" + stages[0]
    stages[-1 if mtp_stage is None else mtp_stage] += "m" * mtp
    stages[-1] += "L"
    cells = [_runs(stage) + "|" for stage in stages[:-1]]
    return _groups(cells) + _runs(stages[-1])


def in_loop(placement: Placement) -> bool:
    """Return whether stage s is on rank s mod p, in one copy of the model."""
    return placement.table == Placement.loop(placement.ranks, placement.chunks).table


def in_v(placement: Placement) -> bool:
    """Return whether stages go down the ranks and back up, once, in one copy of the model."""
    return placement.table == Placement.v(placement.ranks).table


def megatron_layout(placement: Placement, cut: Sequence[int]) -> str:
    """Return the layout string of a cut; placements that Megatron-LM lacks are refused."""
    if not in_loop(placement):
        raise ParameterError(
            f"Megatron-LM places stage s on rank s mod {placement.ranks}; the placement "
            f"'{placement.name}' cannot be written as a layout"
        )
    return layout_text(cut)


def cut_text(placement: Placement, cut: Sequence[int]) -> str:
    """Return the text of a file with the modules of every stage, by program."""
    content: dict[str, object] = {"layers": list(cut)}
    content |= {program: names.of(cut) for program, names in PROGRAMS.items()}
    try:
        content["megatron"] = megatron_layout(placement, cut)
    except ParameterError:
        content["megatron"] = None
    return json.dumps(content, indent=1) + "\n"


def read_cut(path: str) -> Layout:
    """Return the layers of every stage in a file as :func:`cut_text` writes it."""
    data = parse_json(read_text(path, MAX_BYTES), path)
    layers = data.get("layers") if isinstance(data, dict) else None
    if not isinstance(layers, list) or not layers or not all(type(n) is int for n in layers):
        raise FormatError(
            f"{path}: no layers of stages; 'debubble optimize --layers 32 -o x.csv' writes a file "
            f"with some, x{MODULES}"
        )
    return Layout(tuple(layers))


def check_cut(schedule: Schedule, cut: Sequence[int]) -> None:
    """Refuse a cut into another number of stages, or with an empty stage."""
    shown = f"the cut {'/'.join(map(str, cut))} is not one of '{schedule.name}'; "
    if len(cut) != schedule.stages:
        raise ParameterError(
            f"{shown}it has {len(cut)} stages; give the layers of each of its {schedule.stages}"
        )
    empty = [stage for stage, count in enumerate(cut) if count < 1]
    if min(cut) < 0 or set(empty) - {0, len(cut) - 1}:
        raise ParameterError(
            f"{shown}give each of its {schedule.stages} stages at least one layer; only the first, "
            "with the embedding, and the last, with the head, can do without"
        )


def _runs(stage: str) -> str:
    """Return a stage's letters; three and more of a kind as ``t*3``."""
    parts = [(letter, len(list(run))) for letter, run in groupby(stage)]
    return "".join(f"{letter}*{n}" if n > 2 else letter * n for letter, n in parts)


def _groups(cells: Sequence[str]) -> str:
    """Return stages with their bars; repeated ones as ``(tt|)*3`` where that is shorter."""
    text, start = "", 0
    while start < len(cells):
        best, width, saved = cells[start], 1, 0
        for period in range(1, LONGEST_GROUP + 1):
            unit = cells[start : start + period]
            times = 1
            while cells[start + times * period : start + (times + 1) * period] == unit:
                times += 1
            written = f"({''.join(unit)})*{times}"
            less = times * len("".join(unit)) - len(written)
            if less > saved:
                best, width, saved = written, times * period, less
        text += best
        start += width
    return text
