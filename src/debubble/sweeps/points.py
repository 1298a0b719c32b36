"""The spec of a sweep, and the points that follow from it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

MOST_POINTS = 10_000_000
"""Points of one sweep."""


class Point(NamedTuple):
    """One set of options of a sweep."""

    number: int
    """Place in the sweep, from 0."""
    key: str
    """Hash of everything that its results follow from."""
    options: dict[str, Any]
    """Values by dotted name."""


@dataclass(frozen=True)
class Range:
    """Numbers to draw from, both ends included."""

    first: float
    last: float
    log: bool = False
    """Whether all ratios are equally likely, not all differences."""
    whole: bool = False
    step: float = 0.0
    """Only multiples of it from `first` on are drawn; 0 for any number."""

    def at(self, place: float) -> float | int:
        """Return the number at a place from 0 up to, not including, 1."""
        if self.step:
            count = math.floor((self.last - self.first) / self.step * (1 + 1e-12)) + 1
            value = self.first + self.step * math.floor(place * count)
            return round(value) if self.whole else value
        # Every whole number has a stretch of its own.
        first, last = self.first, self.last + 1 if self.whole else self.last
        value = first * (last / first) ** place if self.log else first + (last - first) * place
        return min(math.floor(value), int(self.last)) if self.whole else value


@dataclass(frozen=True)
class Spec:
    """A sweep: a command, options that are fixed, and options that vary.

    Every sample is combined with every point of the grid.

    Parameters
    ----------
    command
        Name of an entry of :data:`debubble.sweeps.commands.COMMANDS`.
    options
        Fixed values by dotted name.
    grid
        Lists of values by dotted name.
    samples, seed, draw
        Number of random draws, their seed, and a list of values or a :class:`Range` for each
        dotted name to draw from. More samples of the same seed begin with the same ones.
    files
        Content of the files that values name, which a command gets in place of the name.
    digests
        Hash of each of these files.
    """

    command: str
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    samples: int = 0
    seed: int = 0
    draw: Mapping[str, tuple[Any, ...] | Range] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict, repr=False)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the options that vary."""
        return (*self.draw, *self.grid)

    @property
    def size(self) -> int:
        """Number of points, before equal samples are counted once."""
        return max(1, self.samples) * math.prod(len(values) for values in self.grid.values())

    def describe(self) -> str:
        """Return the size in words: ``3 schedule × 4 ranks = 12 points``."""
        parts = [f"{self.samples:,} samples"] if self.samples else []
        parts += [f"{len(values):,} {name}" for name, values in self.grid.items()]
        total = f"{self.size:,} point{'' if self.size == 1 else 's'}"
        return f"{self.command}: {' × '.join(parts)} = {total}" if parts else total

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain data; equal for specs of the same points."""
        data: dict[str, Any] = {"command": self.command, "options": dict(self.options)}
        if self.grid:
            data["grid"] = {name: list(values) for name, values in self.grid.items()}
        if self.samples:
            draw = {
                name: vars(values) if isinstance(values, Range) else list(values)
                for name, values in self.draw.items()
            }
            data["samples"] = {"count": self.samples, "seed": self.seed, "draw": draw}
        if self.digests:
            data["files"] = dict(self.digests)
        return data

    def points(self) -> Iterator[Point]:
        """Yield every point once; the grid's last option varies fastest."""
        names = tuple(self.grid)
        number = 0
        for drawn in self._draws():
            for values in itertools.product(*self.grid.values()):
                options = {**self.options, **drawn, **dict(zip(names, values, strict=True))}
                yield Point(number, self._key(options), options)
                number += 1

    def _draws(self) -> Iterator[dict[str, Any]]:
        if not self.samples:
            yield {}
            return
        columns = []
        for name, values in self.draw.items():
            # A stream of its own: another option, or more samples, change no number.
            places = np.random.default_rng([self.seed, *name.encode()]).random(self.samples)
            if isinstance(values, Range):
                columns.append([values.at(place) for place in places.tolist()])
            else:
                columns.append([values[int(place * len(values))] for place in places.tolist()])
        seen = set()
        for row in zip(*columns, strict=True):
            text = json.dumps(row)
            if text not in seen:
                seen.add(text)
                yield dict(zip(self.draw, row, strict=True))

    def _key(self, options: Mapping[str, Any]) -> str:
        content: list[Any] = [self.command, options]
        if self.digests:
            content.append(self.digests)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
