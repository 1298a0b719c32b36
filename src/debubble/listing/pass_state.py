"""A problem, a policy and a pass as arrays, for the loops of :mod:`debubble.listing.kernel`."""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array

NEVER = 1e300
"""Time of what does not happen; the score of a policy that was given up."""

PARAMETERS = 7
"""Numbers in a policy, see :data:`debubble.listing.policies.LEVELS`."""

KEYS = 3
"""Numbers by which results are compared, see :func:`debubble.listing.policy_search.key_into`."""

PARENTS = 10
"""Number of the best policies that are varied."""

ATTEMPTS = 20
"""Variations drawn for each one wanted; some were tried before."""

MOST_CHANGES = 3
"""Most numbers of a policy that one variation changes."""

MOST_DRAWS = 2 + 3 * MOST_CHANGES
"""Most random numbers for one variation."""


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


class SearchTerms(NamedTuple):
    """Limits of a search over policies."""

    batch: int
    """Policies that are tried before the best of all are varied again."""
    most: int
    """Most policies that are tried."""
    budget: float
    """Actions that are placed, about; one policy is always tried."""
    tolerance: float
    """Share by which a pass may be worse than the best before it is dropped."""
    bound: float
    """Objective at which the search ends: nothing can be better."""
    by_stage_time: bool
    """Whether the objective is the largest stage time."""
    scale: float
    """Time in which times are compared, rounded."""


class TriedPolicies(NamedTuple):
    """Policies that were tried, in their order, and what came of them."""

    policies: Array
    """``PARAMETERS`` numbers of each."""
    keys: Array
    """``KEYS`` numbers of each."""
    times: Array
    """Objective of each."""
    parents: Array
    """Scratch space: indices of the ``PARENTS`` best."""


class Draws(NamedTuple):
    """Values and random numbers that variations are drawn from."""

    levels: Array
    """Values that the numbers of a policy step through, one number after the other."""
    begins: Array
    """Index of the first level of every number, and the end of the last."""
    random: Array
    """Random numbers from 0 to 1, used from the first on."""
