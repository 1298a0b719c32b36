"""A schedule: which actions every rank runs, and in which order. No times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core import hooks
from debubble.core import schedule_fields as check
from debubble.core.actions import (
    Action,
    Program,
    cells,
    code_text,
    microbatches_of,
    parse_cell,
    stages_of,
    unpack,
)  # fmt: skip
from debubble.core.carries import offsets_of
from debubble.core.costs import Costs
from debubble.core.errors import FormatError, check_type
from debubble.core.placement import Placement
from debubble.core.schedule_fields import FieldSizes, Saved, checked, saved
from debubble.core.slicing import Slicing

FORMAT, FORMAT_VERSION = "debubble-schedule", 1
SYNCS = ("global", "local", "post-validation")


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """An immutable order of actions on every rank.

    Parameters
    ----------
    name
        Name in tables and pictures.
    placement
        Assignment of stages to ranks.
    microbatches
        Microbatches of one iteration, both directions together.
    actions
        Packed actions of rank 0, then rank 1, …; shape ``(n,)``, read-only.
    offsets
        Program r is ``actions[offsets[r]:offsets[r + 1]]``; shape ``(ranks + 1,)``.
    iterations
        Number of iterations, `microbatches` each; microbatches are numbered through.
    slices
        Sequence slices per microbatch, each a microbatch of its own in `actions`. On every stage
        forwards run in the order of the slices, backwards in reverse.
    cut
        Share of the tokens in each slice; empty for equal slices.
    exchange
        Whether ranks exchange causal attention so that slices of one length take the same time.
    sync
        Dependencies of an ``OPT`` action: ``"global"``, every rank's work of the iteration (a
        gradient norm over all ranks, from rank to rank and back from the last one); ``"local"``,
        its own rank's; ``"post-validation"``, its own rank's and the partial norm of the ranks
        before, where the full norm, known later, may undo the step (arXiv 2401.10241).
    weight_versions
        Versions of the weights in use at the same time: one number, or one for each rank.
    newest_weights
        Whether every backward runs on the newest weights, so that a rank stores one version;
        `weight_versions` then counts those from a microbatch's forward to its backward.
    recompute_after
        Dependencies of an ``R`` action: ``"forward"``, its own forward alone, or ``"gradient"``,
        all that its backward waits for.
    vocabulary
        0 for an output layer (``Costs.head``) on the last stage; 1 or 2 for one that is cut along
        the vocabulary, a shard on every rank, which runs as S and T (arXiv 2411.05288). S waits for
        the last stage's forward, T for the S of all shards. With 1, T is the backward of the output
        layer, and the last stage's backward waits for every T. With 2, S includes the backward for
        the input, corrected later by sums over all shards: the last stage's backward waits for
        every S, and T is the backward for the weights. Sums take two transfers.
    carries
        Skip connections: pairs (from stage, to stage) of a stage and a later one that gets
        something of its output, and returns the gradient; at most one from, and one to, every
        stage.
    explicit_reduction
        Whether ``REDUCE_GRAD`` actions alone reduce gradients, so that every stage needs one.
    options
        Parameters that the schedule was made with, for display and files.
    offload_to
        Rank that keeps each rank's offloaded activations, or None for its host; empty for hosts.
    made_for
        The costs that parts of it were computed from; None if none was, or if that is unknown.
    from_costs
        What was computed from them, of :data:`debubble.core.schedule_fields.FROM_COSTS`; empty for
        the order.
    """

    name: str = field(
        compare=False, metadata=saved(check.any_value, in_file=check.label, default="custom")
    )  # fmt: skip
    placement: Placement
    microbatches: int = field(
        metadata=saved(check.count(), in_file=check.up_to(1 << 24), required=True)
    )
    actions: Program
    offsets: NDArray[np.int64]
    iterations: int = field(default=1, metadata=saved(check.count(), in_file=check.up_to(1 << 16)))
    slices: int = field(default=1, metadata=saved(check.slices, in_file=check.slices_in_file))
    cut: tuple[float, ...] = field(
        default=(),
        metadata=saved(check.cut, write=list, rare=True, same=lambda s: s.slicing.shares),
    )
    exchange: bool = field(default=False, metadata=saved(check.boolean, rare=True))
    sync: str = field(default="global", metadata=saved(check.one_of(SYNCS)))
    weight_versions: int | tuple[int, ...] = field(
        default=1, compare=False, metadata=saved(check.versions, write=check.as_list)
    )
    newest_weights: bool = field(
        default=False, compare=False, metadata=saved(check.boolean, rare=True)
    )
    recompute_after: str = field(default="forward", metadata=saved(check.recompute_after))
    explicit_reduction: bool = field(
        default=False, compare=False, metadata=saved(check.boolean, rare=True)
    )  # fmt: skip
    options: Mapping[str, Any] = field(
        default_factory=dict,
        compare=False,
        metadata=saved(check.any_value, in_file=check.options, write=dict),
    )
    offload_to: tuple[int | None, ...] = field(
        default=(),
        metadata=saved(check.targets, write=list, rare=True, same=lambda s: s.copy_targets),
    )
    vocabulary: int = field(default=0, metadata=saved(check.vocabulary, rare=True))
    carries: tuple[tuple[int, int], ...] = field(
        default=(), metadata=saved(check.carries, write=check.pairs, rare=True)
    )
    made_for: Costs | None = field(
        default=None,
        compare=False,
        repr=False,
        metadata=saved(check.costs, write=check.plain_costs, rare=True),
    )
    from_costs: tuple[str, ...] = field(
        default=(),
        compare=False,
        repr=False,
        metadata=saved(check.from_costs, write=list, rare=True),
    )
    derived: dict[Any, Any] = field(default_factory=dict, init=False, compare=False)
    """Results that other layers derive from the schedule, for instance its event graphs."""

    def __post_init__(self) -> None:
        sizes = FieldSizes(self.placement.ranks, self.slices)
        for name, spec, default in _CHECKED:
            value = getattr(self, name)
            if value is not default:
                object.__setattr__(self, name, checked(name, spec, value, sizes))
        check.check_vocabulary(self.vocabulary, self.placement, self.slices)
        check.check_carries(self.carries, self.placement.stages)
        for name in ("actions", "offsets"):
            object.__setattr__(self, name, check.packed(name, getattr(self, name)))
        check.check_offsets(self.offsets, self.placement.ranks, len(self.actions))

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew: to arrays out of a pickle one may write, which kernels are compiled for again.
        given = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.init}
        return partial(type(self), **given), ()

    @classmethod
    def from_programs(
        cls,
        name: str,
        placement: Placement,
        microbatches: int,
        programs: Iterable[Program],
        **fields: Any,
    ) -> Schedule:
        """Build a schedule from one program per rank; further fields as in the class."""
        check_type("placement", placement, Placement, "give debubble.Placement.loop(ranks, chunks)")
        parts = list(programs)
        offsets = np.cumsum([0, *map(len, parts)])
        actions = np.concatenate(parts) if parts else np.empty(0, np.int64)
        # Nobody else has this array, so that it needs no copy.
        actions.setflags(write=False)
        return cls(name, placement, microbatches, actions, offsets, **fields)

    @classmethod
    def from_text(
        cls,
        programs: Sequence[Sequence[str]],
        placement: Placement,
        microbatches: int,
        name: str = "custom",
        **fields: Any,
    ) -> Schedule:
        """Build a schedule from cells of text, for instance ``[["0F0", "0B0"]]``."""
        slices = fields.get("slices", 1)
        advice = 'give one list of actions per rank: [["0F0", "0B0"]]'
        check_type("programs", programs, Iterable, advice)
        arrays = []
        for rank, texts in enumerate(programs):
            check_type(f"programs[{rank}]", texts, Iterable, advice)
            codes: list[int] = []
            for index, text in enumerate(texts):
                check_type(f"programs[{rank}][{index}]", text, str, "give an action as text: '0F0'")
                try:
                    codes.extend(parse_cell(text, slices))
                except FormatError as error:
                    raise FormatError(f"rank {rank}, action {index}: {error}") from None
            arrays.append(np.array(codes, dtype=np.int64))
        return cls.from_programs(name, placement, microbatches, arrays, **fields)

    def with_programs(self, programs: Iterable[Program], **changes: Any) -> Schedule:
        """Return the schedule with other programs, one per rank, and other fields."""
        parts = list(programs)
        return replace(
            self, actions=np.concatenate(parts), offsets=np.cumsum([0, *map(len, parts)]), **changes
        )

    @property
    def ranks(self) -> int:
        """Pipeline ranks, p."""
        return self.placement.ranks

    @property
    def stages(self) -> int:
        """Stages of the model, S."""
        return self.placement.stages

    @property
    def chunks(self) -> int:
        """Stages of one copy that share a rank, v."""
        return self.placement.chunks

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of the weights that are in use on every rank."""
        used = self.weight_versions
        return (used,) * self.placement.ranks if isinstance(used, int) else used

    @property
    def stored_versions(self) -> tuple[int, ...]:
        """Versions of the weights that every rank keeps."""
        return (1,) * self.placement.ranks if self.newest_weights else self.versions

    @property
    def units(self) -> int:
        """Microbatches (or slices of them) over all iterations."""
        return self.microbatches * self.iterations * self.slices

    @cached_property
    def slicing(self) -> Slicing:
        """The cut of sequences into slices, for :meth:`debubble.core.costs.Costs.resolve`."""
        return Slicing(self.cut or (1 / self.slices,) * self.slices, self.exchange)

    @property
    def copy_targets(self) -> tuple[int | None, ...]:
        """Offload target of every rank: another rank, or None for its host."""
        return self.offload_to or (None,) * self.ranks

    def microbatch_of(self, unit: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the microbatch of the iteration that each unit is, or is a slice of."""
        return unit // self.slices % self.microbatches

    def copies_of(self, unit: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the copy of the model that each unit's microbatch runs through."""
        # A file may claim more microbatches than actions can name, or arrays can hold.
        period = min(self.microbatches, 1 << 40)
        return unit // self.slices % period * self.placement.copies // period

    def places_of(self, actions: Program) -> NDArray[np.int64]:
        """Return the places of actions: stage, of which copy, and for which slice.

        Costs are looked up by place: ``(slice · copies + copy) · stages + stage``.
        """
        places = stages_of(actions)
        copies = self.placement.copies
        if copies * self.slices > 1:
            units = microbatches_of(actions)
            group = units % self.slices * copies + self.copies_of(units)
            places = group * self.stages + places
        return places

    @property
    def homes(self) -> NDArray[np.int64]:
        """The rank of every place."""
        ranks = self.placement.ranks_of_stages
        if self.slices > 1:
            ranks = np.tile(ranks, self.slices)
            # Kernels are compiled anew for an array that may be written to.
            ranks.flags.writeable = False
        return ranks

    @property
    def ranks_of_actions(self) -> NDArray[np.int64]:
        """The rank of every action, shape ``(n,)``."""
        return np.repeat(np.arange(self.ranks), np.diff(self.offsets))

    @cached_property
    def away(self) -> NDArray[np.int64]:
        """Stage offset of the other end of transfers, shape ``(kinds, stages)``; 0 for others."""
        return offsets_of(self.carries, self.stages)

    def text(self, action: Action) -> str:
        """Return an action of this schedule as text, with its slice where there are slices."""
        return action.text(self.slices)

    def text_at(self, position: int) -> str:
        """Return the text of ``actions[position]``, also of a kind that does not exist."""
        return code_text(int(self.actions[position]), self.slices)

    def program(self, rank: int) -> Program:
        """Return the packed actions of one rank."""
        return self.actions[self.offsets[rank] : self.offsets[rank + 1]]

    def rows(self) -> list[list[str]]:
        """Return the programs as text, a list of cells per rank."""
        return [cells(self.program(rank), self.slices) for rank in range(self.ranks)]

    def rank_of(self, position: int) -> int:
        """Return the rank whose program holds ``actions[position]``."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1

    def __iter__(self) -> Iterator[tuple[Action, ...]]:
        """Yield the programs as :class:`Action` tuples, rank by rank."""
        for rank in range(self.ranks):
            yield tuple(unpack(code) for code in self.program(rank).tolist())

    def __len__(self) -> int:
        return len(self.actions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            self.placement.table == other.placement.table
            and all(same(self) == same(other) for same in COMPARED)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.actions, other.actions)
        )

    def __hash__(self) -> int:
        return hash((self.placement.table, self.microbatches, self.actions.tobytes()))

    def __repr__(self) -> str:
        several = f", {self.slices} slices" if self.slices > 1 else ""
        several += f", {self.iterations} iterations" if self.iterations > 1 else ""
        return (
            f"<Schedule {self.name}: {self.ranks} ranks, {self.stages} stages, "
            f"{self.microbatches} microbatches{several}, {len(self):,} actions>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data, as it stands in a JSON file."""
        values = {
            name: spec.write(getattr(self, name))
            for name, spec in SAVED.items()
            if getattr(self, name) or not spec.rare
        }
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "name": values.pop("name"),
            "ranks": self.ranks,
            **values,
            "placement": {"name": self.placement.name, "table": [*map(list, self.placement.table)]},
            "programs": self.rows(),
        }

    def save(self, path: str | Path) -> None:
        """Write a schedule file; the ending (``.json`` or ``.csv``) picks the format."""
        hooks.save_schedule(self, path)


def sizes(schedule: Schedule, *names: str) -> dict[str, int]:
    """Return some sizes of a schedule by name, for plain data."""
    return {name: getattr(schedule, name) for name in names}


SAVED: dict[str, Saved] = {
    spec.name: spec.metadata["saved"] for spec in fields(Schedule) if "saved" in spec.metadata
}
"""Check, comparison, writer and reader of every field that files have, by name."""

_CHECKED = tuple(
    (spec.name, SAVED[spec.name], spec.default)
    for spec in fields(Schedule)
    if spec.name in SAVED and SAVED[spec.name].check is not check.any_value
)
"""Fields whose values are checked, with the default that needs none."""

COMPARED: tuple[Callable[[Schedule], Any], ...] = tuple(
    spec.metadata["saved"].same or attrgetter(spec.name)
    for spec in fields(Schedule)
    if spec.compare and "saved" in spec.metadata
)
"""Values that equal schedules share, in addition to placement and actions."""
