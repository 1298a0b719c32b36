"""Lowering that adds the exchange of weights and gradients among data-parallel replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    SHARDING_KINDS,
    TRANSFER_KINDS,
    Kind,
    Program,
    among,
    begins_group,
    group_bounds,
    kinds_of,
    microbatches_of,
    pack,
    stages_of,
    unpack,
)
from debubble.core.errors import ParameterError, ScheduleError, did_you_mean
from debubble.core.kinds import COMPUTE_KINDS, SEND_KINDS, WEIGHT_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.core.units import is_whole
from debubble.engine.kernels import sharding as kernels
from debubble.engine.validate import refuse_invalid

ShardingMode: TypeAlias = Literal["ddp", "fsdp"]
SHARDING_MODES = ("ddp", "fsdp")

Lookahead: TypeAlias = Literal["full", "auto"] | Sequence[int]
LOOKAHEADS = ("full", "auto")

MAX_ACTIVE = 3
"""Stages whose whole weights a rank holds at most, as in PyTorch."""

_Inserts: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], Program]
"""Ranks, positions, and the actions to insert before them."""


def add_sharding(
    schedule: Schedule,
    *,
    mode: ShardingMode = "ddp",
    max_active: int = MAX_ACTIVE,
    prefetch: bool = True,
    lookahead: Lookahead = "full",
) -> Schedule:
    """Insert the actions in which replicas of a stage reduce gradients and gather weights.

    ``REDUCE_GRAD`` stands behind the last weight gradient of a stage in every iteration, behind
    the whole pair when that is half of one, and behind the sends that follow.

    With ``"fsdp"`` ranks keep a part of their stages' weights only: ``UNSHARD`` gathers those of a
    stage, ``RESHARD`` drops them behind their last use and when another stage needs the room. At
    an optimizer step, which changes them, all are dropped. Both stand between the sends and the
    receives of a group: weights are gathered while their rank waits for what it computes with.

    Parameters
    ----------
    schedule
        A schedule of compute actions, with or without transfers and copies of activations.
    mode
        ``"ddp"``: gradients only; ``"fsdp"``: weights, too.
    max_active
        Maximum number of unsharded stages of a rank.
    prefetch
        Whether a stage is unsharded as soon as it is among the `max_active` that its rank uses
        next, as PyTorch does it, or right before its use, in place of the one that is used last.
    lookahead
        How many stages ahead a rank gathers, apart from how many it holds, as PyTorch's
        ``unshard_lookahead``: an UNSHARD moves to where its stage is among the next so many.
        ``"full"`` is `max_active`; ``"auto"`` r + 2 on rank r and no more than that, as many as
        can be gathered in time while the pipeline fills; else one number for each rank. The same
        weights are gathered and dropped, and they are dropped at the same places.

    Returns
    -------
    Schedule
        With a time of ``Costs.unshard`` and ``Costs.reduce_grad`` on a stream of their own.

    Raises
    ------
    ParameterError
        When there is no such mode, no room for what overlapped pairs use together, or a lookahead
        that does not fit.
    ScheduleError
        When the schedule has such actions already, or some that do not exist.

    Examples
    --------
    >>> import debubble as db
    >>> from debubble.lowering.sharding import add_sharding
    >>> plain = db.make("1f1b", ranks=2, microbatches=1)
    >>> for row in add_sharding(plain, mode="fsdp").rows():
    ...     print(" ".join(row))
    0UNSHARD0 0F0 0B0 0REDUCE_GRAD0 0RESHARD0
    1UNSHARD0 1F0 1B0 1REDUCE_GRAD0 1RESHARD0
    """
    _refuse(schedule, mode, max_active)
    distance = lookahead_of(lookahead, schedule.ranks, max_active)
    if lookahead != "full" and not (mode == "fsdp" and prefetch):
        raise ParameterError(
            "a lookahead is for fsdp that gathers weights ahead; leave it out, or use mode 'fsdp'"
        )
    kinds = kinds_of(schedule.actions)
    inserts = [_reductions(schedule, kinds)]
    if mode == "fsdp":
        inserts.append(_weights(schedule, kinds, max_active, prefetch, distance))
    ranks, spots, codes = (np.concatenate(column) for column in zip(*inserts, strict=True))
    # Where one program ends and the next begins the rank decides, elsewhere the order above.
    order = np.lexsort((ranks, spots))
    added = np.searchsorted(ranks[order], np.arange(schedule.ranks + 1))
    return replace(
        schedule,
        actions=np.insert(schedule.actions, spots[order], codes[order]),
        offsets=schedule.offsets + added,
    )


def _refuse(schedule: Schedule, mode: ShardingMode, max_active: int) -> None:
    """Raise for an unknown mode, a schedule that is sharded already, or too little room."""
    if mode not in SHARDING_MODES:
        raise ParameterError(f"sharding mode '{mode}'; {did_you_mean(mode, SHARDING_MODES)}")
    refuse_invalid(schedule)
    there = among(kinds_of(schedule.actions), SHARDING_KINDS)
    if there.any():
        position = int(there.argmax())
        raise ScheduleError(
            f"'{schedule.name}' has {unpack(int(schedule.actions[position]))} already on rank "
            f"{schedule.rank_of(position)}; lower a schedule without it"
        )
    begin, stop = group_bounds(schedule.actions)
    least = int((stop - begin).max(initial=1))
    if mode == "fsdp" and max_active < least:
        raise ParameterError(
            f"max_active is {max_active}; "
            f"{f'a group may use {least} stages' if least > 1 else 'use 1'} or more"
        )


def lookahead_of(lookahead: Lookahead, ranks: int, max_active: int) -> NDArray[np.int64]:
    """Return the number of stages ahead that every rank gathers, shape ``(ranks,)``.

    Raises ParameterError when there is no such policy, or numbers do not fit.
    """
    if isinstance(lookahead, str):
        if lookahead not in LOOKAHEADS:
            raise ParameterError(
                f"lookahead is '{lookahead}'; {did_you_mean(lookahead, LOOKAHEADS)}"
            )
        ahead = 2 + np.arange(ranks) if lookahead == "auto" else np.full(ranks, max_active)
        return np.asarray(np.minimum(ahead, max_active))
    numbers = list(lookahead)
    if len(numbers) != ranks:
        raise ParameterError(
            f"lookahead has {len(numbers)} values for {ranks} ranks; give one for each"
        )
    for number in numbers:
        if not is_whole(number) or not 1 <= number <= max_active:
            raise ParameterError(
                f"lookahead has {number!r}; give whole numbers from 1 to max_active, {max_active}"
            )
    return np.array(numbers, dtype=np.int64)


def _reductions(schedule: Schedule, kinds: NDArray[np.int64]) -> _Inserts:
    actions, stages = schedule.actions, schedule.stages
    made = np.flatnonzero(among(kinds, WEIGHT_KINDS))
    iteration = microbatches_of(actions[made]) // (schedule.microbatches * schedule.slices)
    owner = (_ranks_of(schedule, made) * stages + stages_of(actions[made])) * schedule.iterations
    last = np.full(schedule.ranks * stages * schedule.iterations, -1)
    last[owner + iteration] = made
    keys = np.flatnonzero(last >= 0)
    place, iteration = np.divmod(keys, schedule.iterations)
    ranks, stage = np.divmod(place, stages)
    spots = _behind_sends(schedule, kinds, ranks, group_bounds(actions)[1][last[keys]])
    return ranks, spots, pack(Kind.REDUCE_GRAD, stage, iteration)


def _behind_sends(
    schedule: Schedule,
    kinds: NDArray[np.int64],
    ranks: NDArray[np.int64],
    spots: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the places behind the last send of the transfers that stand around some places.

    That is in front of the first of them where none is a send.
    """
    sends = np.flatnonzero(among(kinds, SEND_KINDS))
    if not len(sends):
        return spots
    others = np.flatnonzero(~among(kinds, TRANSFER_KINDS))
    place = np.searchsorted(others, spots)
    begin = np.maximum(np.append(others, -1)[place - 1] + 1, schedule.offsets[ranks])
    end = np.append(others, len(kinds))[place]
    end = np.minimum(end, schedule.offsets[ranks + 1])
    last = np.append(sends, -1)[np.searchsorted(sends, end) - 1]
    return np.asarray(np.maximum(begin, last + 1))


def _weights(
    schedule: Schedule,
    kinds: NDArray[np.int64],
    max_active: int,
    prefetch: bool,
    distance: NDArray[np.int64],
) -> _Inserts:
    actions = schedule.actions
    uses = np.flatnonzero(among(kinds, WORK_KINDS))
    ranks, stage = _ranks_of(schedule, uses), stages_of(actions[uses])
    # Nothing is held from rank to rank, or across a step.
    chain = ranks + np.cumsum(kinds == Kind.OPT)[uses]
    count, stages = len(uses), schedule.stages
    following = np.zeros(count, dtype=np.int64)
    kernels.find_uses.run(count, chain, stage, np.full(stages, -1), following)
    homes = np.asarray(schedule.placement.table).ravel()
    most = int(np.bincount(homes).max())
    chains = 1 + int(chain[-1]) if count else 0
    room = 4 * count if most > max_active else 2 * most * chains
    joined = ~begins_group(actions[uses])
    events = kernels.Events(*np.zeros((2, room), dtype=np.int32))
    happened = kernels.hold_weights.run(
        4 * count,
        kernels.Uses(chain, stage, joined, following),
        max_active,
        prefetch,
        kernels.Weights(*np.zeros((3, stages), dtype=np.int64)),
        events,
    )
    where, what = (column[:happened] for column in events)
    if (distance < max_active).any():
        kernels.delay_gathers.run(
            4 * count, stage, joined, ranks, distance, what,
            np.zeros(stages, dtype=np.int64), where,
        )  # fmt: skip
        order = np.argsort(where, kind="stable")
        where, what = where[order], what[order]
    use = where >> 1
    position = uses[use]
    anchors = np.flatnonzero(among(kinds, COMPUTE_KINDS))
    behind = np.append(anchors, len(actions))[np.searchsorted(anchors, position, side="right")]
    behind = np.minimum(behind, schedule.offsets[ranks[use] + 1])
    codes = np.where(what & 1, pack(Kind.RESHARD, what >> 1, 0), pack(Kind.UNSHARD, what >> 1, 0))
    spots = np.where(where & 1, behind, position)
    return ranks[use], _behind_sends(schedule, kinds, ranks[use], spots), codes


def _ranks_of(schedule: Schedule, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(schedule.offsets, positions, side="right") - 1
