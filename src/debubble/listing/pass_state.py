"""A problem, a policy and a pass as arrays, for the loops of :mod:`debubble.listing.kernel`."""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array

NEVER = 1e300
"""Time of what does not happen; the score of a policy that was given up."""

PARAMETERS = 7
"""Numbers in a policy, see :data:`debubble.listing.policies.LEVELS`."""

SCORES = 4
"""Numbers that come back: makespan, largest stage time, largest share of a limit, steps."""


class ListProblem(NamedTuple):
    """A workload as arrays over stages, then over ranks."""

    microbatches: int
    period: float
    """Work of the busiest rank for one microbatch."""
    tiny: float
    """Times that differ by less are equal."""

    rank_of: Array
    forward_time: Array
    input_time: Array
    weight_time: Array
    link_forward: Array
    """Transfer time into a stage from the one before."""
    link_backward: Array
    """Transfer time into a stage from the one after; less than 0 where that one recomputes
    meanwhile."""
    activation: Array
    """Activations that a forward leaves."""
    more: Array
    """Memory that the backward takes in addition."""
    kept: Array
    """Memory that a backward for weights frees."""
    forward_at: Array
    input_at: Array
    """As `forward_at`, the earliest starts of a lone microbatch."""
    lifespan: Array
    """Time from the forward of a lone microbatch to the end of its backward."""

    offsets: Array
    stages_of: Array
    """``stages_of[offsets[r]:offsets[r + 1]]`` are the stages on rank r."""
    memory: Array
    """Memory limit."""
    filled: Array
    """Memory that the forwards of one microbatch fill."""
    extra: Array
    """Memory that the backwards of one microbatch take in addition."""
    lifespans: Array
    """Sum of activation times lifespan over the stages."""
    work: Array
    """Time that the rank computes in total."""
    demanding: Array
    """Whether any backward takes memory."""


class PassProgress(NamedTuple):
    """Scratch space of a pass: what has run, and when the rest can."""

    forward_in: Array
    input_in: Array
    """As `forward_in`, when every microbatch's input arrives, at ``stage·(m + 1) + microbatch``."""
    forwards: Array
    inputs: Array
    weights: Array
    """As the two before, the number of such actions of every stage that have started."""
    caps: Array
    """Microbatches that a stage may hold."""
    forward_due: Array
    input_due: Array
    forward_key: Array
    input_key: Array
    """As the three before, when the first and the next action of every stage is due."""
    forward_start: Array
    input_start: Array
    """As `forward_start`, when the next action of every stage of the rank at hand can start."""
    free: Array
    """Time at which every rank has done all that it has started."""
    first: Array
    """Start of every rank."""
    lost: Array
    """Work of every rank and the time it was idle so far: no less than what the pass scores."""
    written: Array
    """Index at which every rank's next action is written."""
    wake: Array
    """Time at which every rank decides next."""
    next_in: Array
    """The rank that decides next of every ``GROUP`` ranks."""


class PolicyRules(NamedTuple):
    """A policy; turn, delay and patience as times."""

    slope: float
    back_slope: float
    turn: float
    rounding: float
    delay: float
    gap: float
    patience: float
