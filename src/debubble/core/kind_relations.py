"""Sets and relations of kinds that follow from their rows in the table."""

from __future__ import annotations

from collections.abc import Iterable

from debubble.core.kind_fields import WaitRules
from debubble.core.kinds import (
    GRADIENT_KINDS,
    KINDS,
    SHARDING_KINDS,
    STEP_KINDS,
    WEIGHT_KINDS,
    WORK_KINDS,
    Kind,
    Need,
    Of,
    Per,
    Time,
)

ACTIVATION_KINDS = tuple(spec.kind for spec in KINDS if "stored" in spec.takes)
"""Forwards alone, without the transfers of what they compute: kinds that leave an activation."""

RECOMPUTE_KINDS = tuple(spec.kind for spec in KINDS if "recomputed" in spec.takes)
"""Kinds that bring an activation back by computing it again."""

PASS_KINDS = tuple(
    kind for kind in WORK_KINDS if kind in ACTIVATION_KINDS or KINDS[kind].instead_of
)
"""Kinds in which the forward and the backward of a stage are done, whole or in parts."""

SPLIT_KINDS = max((spec.instead_of for spec in KINDS), key=len)
"""Parts of a backward that is not fused."""

FUSED_KIND = next(spec.kind for spec in KINDS if spec.instead_of == SPLIT_KINDS)
"""The backward that does what these parts do together."""

(FORWARD_KIND,) = ACTIVATION_KINDS
(RECOMPUTE_KIND,) = RECOMPUTE_KINDS
(INPUT_KIND,) = (kind for kind in SPLIT_KINDS if kind in GRADIENT_KINDS)
(WEIGHT_KIND,) = (kind for kind in SPLIT_KINDS if kind in WEIGHT_KINDS)
"""With :data:`FUSED_KIND` the work of a stage for a microbatch, by role."""

STEP_KIND, *_ = STEP_KINDS
REDUCTION_KIND, *_ = (kind for kind in SHARDING_KINDS if KINDS[kind].per is Per.STAGE_STEP)
GATHER_KIND, *_ = (
    need.kinds[0] for spec in KINDS for need in spec.needs if need.of is Of.LATEST
)  # fmt: skip
DROP_KIND, *_ = (kind for kind in SHARDING_KINDS if KINDS[kind].time is Time.NONE)
"""Other kinds of stages, by role: optimizer steps, and what replicas of a stage exchange."""

COST_KINDS = {
    spec.cost: tuple(other.kind for other in KINDS if other.cost == spec.cost)
    for spec in KINDS
    if spec.cost
}
"""Kinds that pay each cost."""


def needs_through(kind: Kind, carried: bool = False) -> list[Need]:
    """Return what a kind needs of a neighbor or, with `carried`, of a stage that is none."""
    needs = (need for need in KINDS[kind].needs if need.through is not None)
    return [need for need in needs if (not need.stage) == carried]


def transfer_of(kind: Kind, carried: bool = False) -> tuple[Kind, Kind]:
    """Return the send and the receive of what a kind computes for another stage.

    That is a neighbor or, with `carried`, the stage that its own carries something to, or from.
    """
    through = (
        need.through
        for spec in KINDS
        for need in needs_through(spec.kind, carried)
        if kind in need.kinds
    )
    receive = next(through)
    assert receive is not None, "these needs come through receives"
    send = KINDS[receive].other_end
    assert send is not None, "a receive has another end"
    return send, receive


def order_of(kinds: Iterable[Kind]) -> tuple[tuple[Kind, Kind], ...]:
    """Return pairs of some kinds of which one needs the other of the same stage and microbatch."""
    among = tuple(kinds)
    return tuple(
        (kind, other)
        for kind in among
        for need in KINDS[kind].needs
        if need.of is Of.STAGE and not need.stage and not need.slice
        for other in need.kinds
        if other in among
    )


def ranks_stepped_with(schedule: WaitRules) -> Of | None:
    """Return the ranks whose same step an optimizer step waits for; None for its own alone."""
    rules = (need.of for kind in STEP_KINDS for need in KINDS[kind].needs if need.when(schedule))
    return next((of for of in rules if of in (Of.EARLIER_RANKS, Of.EVERY_RANK)), None)


def slice_order() -> tuple[tuple[tuple[Kind, ...], int], ...]:
    """Return kinds whose slices follow each other, and the offset of the slice they need."""
    found = ((need.kinds, need.slice) for spec in KINDS for need in spec.needs if need.slice)
    return tuple(dict.fromkeys(found))


def boundary_offsets() -> dict[Kind, int]:
    """Return kinds whose result another stage needs, and the offset of that stage."""
    return {
        kind: -need.stage
        for spec in KINDS
        for need in needs_through(spec.kind)
        for kind in need.kinds
    }
