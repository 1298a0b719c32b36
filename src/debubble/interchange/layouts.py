"""Which layers every stage has, as other programs write it.

Megatron-LM takes a string, ``--pipeline-model-parallel-layout``: a letter per layer (``E`` the
embedding, ``t`` a decoder layer, ``m`` one of multi-token prediction, ``L`` the loss), a bar
between stages, ``x*n`` for n times a letter and ``(...)*n`` for n times a group; commas mean
nothing, a stage may be empty. Stage s is on rank s mod p, so that a V cannot be written. torchtitan
and NeMo Automodel take the names of every stage's modules, in stage order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from debubble.core.errors import FormatError, ParameterError
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule

LETTERS = "EtmL"

MAX_LAYERS = 1 << 16
"""Letters of a layout at most, once it is written out."""

LONGEST_GROUP = 8
"""Stages that are looked at as a group that repeats."""


@dataclass(frozen=True)
class ModuleNames:
    """What a program calls the modules of a decoder model.

    Parameters
    ----------
    first, last
        What only the first and the last stage have.
    layer
        A layer by number.
    every
        What every stage has.
    """

    first: tuple[str, ...]
    layer: str
    last: tuple[str, ...]
    every: tuple[str, ...] = ()

    def of(self, cut: Sequence[int]) -> list[list[str]]:
        """The modules of every stage, for a cut that says how many layers each has.

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
    """A model cut into stages, as Megatron-LM's string says it.

    Parameters
    ----------
    stages
        The letters of every stage, in stage order.

    Raises
    ------
    FormatError
        When there are other letters, or they are out of order.
    """

    stages: tuple[str, ...]

    def __post_init__(self) -> None:
        letters = "".join(self.stages)
        if unknown := sorted(set(letters) - set(LETTERS)):
            raise FormatError(
                f"a layout has the letter '{unknown[0]}'; it is made of E (embedding), t (layer), "
                "m (multi-token prediction) and L (loss)"
            )
        if not re.fullmatch("Et*m*L", letters):
            raise FormatError(
                f"a layout has its layers in the order {_shown(letters)}; it is one E, all t, "
                "all m, one L"
            )

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Decoder layers of every stage."""
        return tuple(stage.count("t") for stage in self.stages)

    @cached_property
    def mtp(self) -> tuple[int, ...]:
        """Layers of multi-token prediction of every stage."""
        return tuple(stage.count("m") for stage in self.stages)

    def on_ranks(self, ranks: int) -> list[list[str]]:
        """The letters of every rank's chunks: stage s is chunk s // ranks of rank s mod ranks.

        Raises
        ------
        ParameterError
            When the stages are not the same number for every rank.

        Examples
        --------
        >>> parse_layout("Et|(tt|)*2L").on_ranks(2)
        [['Et', 'tt'], ['tt', 'L']]
        """
        if len(self.stages) % ranks:
            raise ParameterError(
                f"the layout has {len(self.stages)} stages; {ranks} ranks take a multiple"
            )
        return [list(self.stages[rank::ranks]) for rank in range(ranks)]

    def __str__(self) -> str:
        cells = [_runs(stage) + "|" for stage in self.stages[:-1]]
        return _groups(cells) + _runs(self.stages[-1])


def cut_layout(cut: Sequence[int], mtp: int = 0) -> Layout:
    """The layout of a cut: the embedding first, multi-token prediction and loss last.

    Examples
    --------
    >>> str(cut_layout([3, *[2] * 29, 0], mtp=1))
    'Et*3|(tt|)*29mL'
    """
    stages = ["t" * count for count in cut]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return Layout(tuple(stages))


def parse_layout(text: str) -> Layout:
    """Read the string that Megatron-LM takes as ``--pipeline-model-parallel-layout``.

    Raises
    ------
    FormatError
        When it is none; the message says where.

    Examples
    --------
    >>> parse_layout("Et*3|(tt|)*2,m|L").stages
    ('Ettt', 'tt', 'tt', 'm', 'L')
    """
    plain = text.replace(",", "")
    letters, position = "", 0
    while position < len(plain):
        part = _GROUP.match(plain, position) or _LETTER.match(plain, position)
        if part is None:
            raise FormatError(
                f"a layout has '{_shown(plain[position:])}' where a letter of {LETTERS}, a bar or "
                "a group such as (tt|)*3 is expected"
            )
        inner, times = part.groups()
        if part.re is _GROUP:
            inner = "".join(letter * int(n or 1) for letter, n in _LETTER.findall(inner))
        if len(inner) * int(times or 1) > MAX_LAYERS - len(letters):
            raise FormatError(f"a layout has more than {MAX_LAYERS:,} layers and stages")
        letters += inner * int(times or 1)
        position = part.end()
    return Layout(tuple(letters.split("|")))


_LETTER = re.compile(r"([A-Za-z|])(?:\*([0-9]{1,6}))?")
_GROUP = re.compile(r"\(((?:[A-Za-z|](?:\*[0-9]{1,6})?)+)\)\*([0-9]{1,6})")


def in_loop(placement: Placement) -> bool:
    """Whether stage s is on rank s mod p, of one copy of the model."""
    return placement.table == Placement.loop(placement.ranks, placement.chunks).table


def in_v(placement: Placement) -> bool:
    """Whether stages go down the ranks and back up, once, of one copy of the model."""
    return placement.table == Placement.v(placement.ranks).table


def megatron_layout(placement: Placement, cut: Sequence[int], mtp: int = 0) -> str:
    """The layout string of a cut over a placement.

    Raises
    ------
    ParameterError
        When Megatron-LM places no stages like this.
    """
    if not in_loop(placement):
        raise ParameterError(
            f"Megatron-LM places stage s on rank s mod {placement.ranks}; the placement "
            f"'{placement.name}' cannot be written as a layout"
        )
    return str(cut_layout(cut, mtp))


def cut_text(placement: Placement, cut: Sequence[int]) -> str:
    """The content of a file that says what the stages of a cut have, by program."""
    content: dict[str, object] = {"layers": list(cut)}
    content |= {program: names.of(cut) for program, names in PROGRAMS.items()}
    try:
        content["megatron"] = megatron_layout(placement, cut)
    except ParameterError:
        content["megatron"] = None
    return json.dumps(content, indent=1) + "\n"


def check_cut(schedule: Schedule, cut: Sequence[int]) -> None:
    """Refuse a cut into another number of stages, or a stage without anything.

    Raises
    ------
    ParameterError
        With the stage, and what a cut needs.
    """
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
    """A stage's letters; three and more of a kind as ``t*3``."""
    parts = [(letter, len(list(run))) for letter, run in groupby(stage)]
    return "".join(f"{letter}*{n}" if n > 2 else letter * n for letter, n in parts)


def _groups(cells: Sequence[str]) -> str:
    """Stages with their bars; repeated ones as ``(tt|)*3`` where that is shorter."""
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


def _shown(text: str) -> str:
    return text if len(text) <= 24 else text[:24] + "…"
