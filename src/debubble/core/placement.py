"""Placements: which rank holds which stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import MAX_STAGES
from debubble.core.errors import ParameterError
from debubble.core.units import whole_number


@dataclass(frozen=True)
class Placement:
    """Assignment of stages to ranks, one for each copy of the model.

    Parameters
    ----------
    table
        ``table[copy][stage]`` is a rank. All copies have the same number of stages.
    name
        Name of the shape, for display.
    ranks
        Number of ranks; the default is one more than the largest rank in the table.

    Notes
    -----
    With two copies the first half of each iteration's microbatches runs through copy 0 and the
    second half through copy 1.
    """

    table: tuple[tuple[int, ...], ...]
    name: str = "explicit"
    ranks: int = 0

    def __post_init__(self) -> None:
        if not self.table or not self.table[0]:
            raise ParameterError("a placement needs at least one stage; give table=[[0]]")
        if len({len(row) for row in self.table}) != 1:
            raise ParameterError("every copy of a placement needs the same number of stages")
        if len(self.table[0]) > MAX_STAGES:
            raise ParameterError(f"{len(self.table[0])} stages; the limit is {MAX_STAGES}")
        if self.ranks == 0:
            object.__setattr__(self, "ranks", 1 + max(max(row) for row in self.table))
        for row in self.table:
            for stage, rank in enumerate(row):
                if not 0 <= rank < self.ranks:
                    raise ParameterError(
                        f"stage {stage} is placed on rank {rank}; ranks go from 0 to "
                        f"{self.ranks - 1}"
                    )

    @classmethod
    def linear(cls, ranks: int) -> Placement:
        """Place one stage per rank: stage s on rank s."""
        return cls.loop(ranks, 1)

    @classmethod
    def block(cls, ranks: int, chunks: int) -> Placement:
        """Place neighboring stages together: stage s on rank s // chunks."""
        ranks, chunks = check_sizes(ranks, chunks)
        table = tuple(stage // chunks for stage in range(ranks * chunks))
        return cls((table,), "block", ranks)

    @classmethod
    def loop(cls, ranks: int, chunks: int) -> Placement:
        """Place stages round and round: stage s on rank s mod ranks."""
        ranks, chunks = check_sizes(ranks, chunks)
        table = tuple(stage % ranks for stage in range(ranks * chunks))
        return cls((table,), "loop" if chunks > 1 else "one stage per rank", ranks)

    @classmethod
    def wave(cls, ranks: int, chunks: int) -> Placement:
        """Place stages down and up again, `chunks` times across all ranks; two chunks make a V."""
        ranks, chunks = check_sizes(ranks, chunks)
        table = tuple(
            stage % ranks if stage // ranks % 2 == 0 else ranks - 1 - stage % ranks
            for stage in range(ranks * chunks)
        )
        name = {1: "one stage per rank", 2: "V"}.get(chunks, "wave")
        return cls((table,), name, ranks)

    @classmethod
    def v(cls, ranks: int) -> Placement:
        """Place stages down and back up: stage s on rank s, then mirrored."""
        return cls.wave(ranks, 2)

    @classmethod
    def bidirectional(cls, ranks: int, chunks: int = 1) -> Placement:
        """Place two copies of the model in opposite directions, each as a wave."""
        ranks, chunks = check_sizes(ranks, chunks)
        down = cls.wave(ranks, chunks).table[0]
        up = tuple(ranks - 1 - rank for rank in down)
        return cls((down, up), "two copies, opposite directions", ranks)

    @classmethod
    def explicit(cls, table: Sequence[int] | Sequence[Sequence[int]], ranks: int = 0) -> Placement:
        """Place stages by a table: one rank per stage, or one such row per copy of the model."""
        rows = [[row] if isinstance(row, int) else list(row) for row in table]
        if all(isinstance(row, int) for row in table):
            rows = [[row[0] for row in rows]]
        return cls(tuple(tuple(int(rank) for rank in row) for row in rows), "explicit", ranks)

    @property
    def stages(self) -> int:
        """Number of stages of the model."""
        return len(self.table[0])

    @property
    def copies(self) -> int:
        """Number of copies of the model that the ranks hold together."""
        return len(self.table)

    @cached_property
    def chunks(self) -> int:
        """Largest number of stages of one copy that share a rank."""
        return max(int(np.bincount(np.asarray(row)).max()) for row in self.table)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without arrays, see Schedule.
        return type(self), (self.table, self.name, self.ranks)

    @cached_property
    def ranks_of_stages(self) -> NDArray[np.int64]:
        """Ranks of all stages of copy 0, then of copy 1: shape ``(copies * stages,)``."""
        flat = np.asarray(self.table, dtype=np.int64).ravel()
        flat.setflags(write=False)
        return flat

    def stages_on(self, rank: int, copy: int | None = None) -> tuple[int, ...]:
        """Return the stages that live on a rank, of one copy or of all, in forward order."""
        rows = self.table if copy is None else self.table[copy : copy + 1]
        return tuple(
            sorted({stage for row in rows for stage, where in enumerate(row) if where == rank})
        )

    def __str__(self) -> str:
        return f"{self.name}, {self.stages} stages on {self.ranks} ranks"


def check_sizes(ranks: int, chunks: int = 1) -> tuple[int, int]:
    """Return ranks and chunks as Python's integers; a ParameterError where they are none."""
    ranks, chunks = whole_number("ranks", ranks), whole_number("chunks", chunks)
    if ranks * chunks > MAX_STAGES:
        raise ParameterError(f"{ranks * chunks} stages; the limit is {MAX_STAGES}")
    return ranks, chunks
