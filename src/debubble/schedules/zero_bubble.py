"""Zero-bubble schedules with one stage per rank: handcrafted, and ordered for costs and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from debubble.core.actions import Kind, Program
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.sequence import alternate, as_kind, backward, forward, moved, sequence
from debubble.schedules._storage import Storage, Terms, named_by
from debubble.schedules.registry import (
    ClosedForm,
    Constraint,
    makespan_is,
    peak_is,
    register,
    stage_time_is,
)


def split(forwards: Program, backwards: Program, warm_up: int, lag: int) -> Program:
    """Return warm-up forwards, then F and I in turn with W trailing by `lag`, then the rest."""
    I, W = as_kind(backwards, Kind.I), as_kind(backwards, Kind.W)
    warm_up = min(warm_up, len(forwards))
    steady = len(forwards) - warm_up
    trailing = min(lag, steady)
    weights = max(steady - lag, 0)
    # What is left of the lag when forwards run out goes on in the drain.
    late = min(lag - trailing, warm_up)
    drained = weights + warm_up - late
    return sequence(
        forwards[:warm_up],
        alternate(forwards[warm_up : warm_up + trailing], I[:trailing]),
        alternate(forwards[warm_up + trailing :], I[trailing:steady], W[:weights]),
        I[steady : steady + late],
        alternate(I[steady + late :], W[weights:drained]),
        W[drained:],
    )


def _one_stage_per_rank(ranks: int, microbatches: int, pace: int) -> Iterator[Program]:
    """Yield programs whose warm-ups shrink by `pace` per rank, while the lag of W grows by it."""
    forwards, backwards = forward(0, range(microbatches)), backward(0, range(microbatches))
    for rank in range(ranks):
        warm_up = pace * (ranks - 1 - rank)
        # Where forwards run out first, W makes up for the rest of the lag in the drain.
        lag = min(pace * rank, max(microbatches - warm_up, 0))
        yield moved(split(forwards, backwards, warm_up, lag), rank)


@register(
    "zb-h1",
    title="1F1B with split backward: weights' part fills the drain, same memory",
    year=2023,
    source="@qi2024zero",
    chunks=1,
    aliases=("zb-1p", "zb1p", "zbh1"),
    forms=(
        stage_time_is(
            "m(F + I + W) + (p − 1)(F + I − W)",
            condition="no latency, m ≥ p, W ≤ F and I",
        ),
        peak_is(
            "min(p, m) (all of it kept until W)",
            lambda k: min(k.p, k.m) * k.unit,
            condition="kept_for_weight = 1",
        ),
        peak_is(
            "(p − r) + r·kept",
            lambda k: [(k.p - r) * k.unit + r * k.kept for r in range(k.p)],
            accuracy="upper bound",
            holds=lambda k: k.kept < k.unit,
            condition="kept_for_weight < 1",
        ),
    ),
)
def zb_h1(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """1F1B whose backward is split; rank r runs W r microbatches after I.

    The drain no longer waits idle for gradients to come back: it runs W. The bubble shrinks from
    (p − 1)(F + I + W) to (p − 1)(F + I − W), measured as the largest stage time; memory stays p
    microbatches on every rank.

    When to use it: in place of 1f1b, as soon as the backward can be split: same memory, same
    messages, a third of the bubble for F = I = W. zb-auto is never slower where costs are known.

    p = 4, m = 5::

        r0 | F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4
        r1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4
        r2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 I4 W2 W3 W4
        r3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4
    """
    return _one_stage_per_rank(ranks, microbatches, pace=1)


@register(
    "zb-h2",
    title="Split backward with twice the warm-up: no idle time between first and last action",
    year=2023,
    source="@qi2024zero",
    chunks=1,
    aliases=("zbh2",),
    constraints=(
        Constraint(
            "microbatches",
            "at least 2·ranks − 1 microbatches, as many as are in flight at once",
            lambda k: k.microbatches >= 2 * k.ranks - 1,
        ),
    ),
    forms=(
        stage_time_is("m(F + I + W) + (p − 1)(F + I − 2W)", condition="no latency, W ≤ F and I"),
        peak_is(
            "2p − 1 (all of it kept until W)",
            lambda k: (2 * k.p - 1) * k.unit,
            condition="kept_for_weight = 1",
        ),
    ),
)
def zb_h2(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Twice the warm-up of ZB-H1, and W trails I by 2r on rank r.

    With F = I = W no rank is idle between its first and its last action. That is a zero of stage
    time only: the makespan keeps the (p − 1)F after which the last rank starts, unless the next
    iteration may start before the last rank is done. It takes almost twice the memory.

    When to use it: memory for nearly twice the activations of 1f1b, and optimizer steps that need
    not wait for all ranks (sync of ``local`` or ``post-validation``). With a flush it gains on
    zb-h1 only through latency or times that differ.

    p = 3, m = 6::

        r0 | F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 .  .
        r1 | .  F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5 .
        r2 | .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
    """
    return _one_stage_per_rank(ranks, microbatches, pace=2)


SOURCE = "@qi2024zero; search: debubble"


def scheduled(times: int) -> Callable[[Callable[[], None]], Callable[..., list[Program]]]:
    """Make a description the best schedule that is found.

    Its default limit is `times` p microbatches.
    """

    def order(
        *,
        ranks: int,
        microbatches: int,
        costs: Costs | None = None,
        memory: float | Sequence[float] | None = None,
        storage: Storage | None = None,
        objective: str = "makespan",
    ) -> list[Program]:
        terms = Terms.of(Placement.linear(ranks), costs, storage)
        handcrafted = [list(zb_h1(ranks=ranks, microbatches=microbatches))]
        if microbatches >= 2 * ranks - 1:
            handcrafted.append(list(zb_h2(ranks=ranks, microbatches=microbatches)))
        if memory is None:
            own = handcrafted[0 if times == 1 else -1]
            memory = terms.limit_of(times * ranks, own, microbatches)
        return terms.schedule(microbatches, memory, objective, handcrafted)

    return lambda description: named_by(description, order)


BOUND = makespan_is(
    "m(F + I + W) + (p − 1)(F + c)",
    accuracy="lower bound",
    condition="the last rank works all the time once the first microbatch is there",
)
REACHED = makespan_is(
    "m(F + I + W) + (p − 1)F",
    condition="F = I = W, no latency, m ≥ p, default memory, objective makespan",
)


def _forms(times: int) -> tuple[ClosedForm, ...]:
    """Return closed forms for a default limit of `times` p microbatches."""
    limit, enough = ("p", "m ≥ p") if times == 1 else ("2p", "m ≥ 2p − 1")
    return (
        BOUND,
        REACHED,
        stage_time_is(
            f"m(F + I + W) + (p − 1)(F + I − {'W' if times == 1 else '2W'})",
            accuracy="upper bound",
            condition=f"no latency, {enough}, W ≤ F and I, default memory, objective stage-time",
        ),
        peak_is(
            f"min({limit}, m), or the memory limit",
            lambda k: min(times * k.p, k.m) * k.unit if k.memory is None else k.memory,
            accuracy="upper bound",
        ),
    )


@register(
    "zb-auto",
    title="Split backward, ordered for the costs in the memory of 1F1B or any other",
    year=2023,
    source=SOURCE,
    chunks=1,
    forms=_forms(1),
)
@scheduled(times=1)
def zb_auto() -> None:
    """ZB-1p of the paper, and with other memory all that is between one microbatch and ZB-2p.

    As many forwards as memory holds fill the time until the first gradient is back; then forwards
    and backwards for input alternate, and backwards for weights fill gaps and make room. How this
    is best done depends on the costs of all ranks, on latency and on memory, so the order is looked
    for (see :mod:`debubble.listing`). It is never slower than ZB-H1, nor than ZB-H2 where
    the memory allows that.

    When to use it: one stage per rank, a backward that can be split, costs that are measured, and
    any memory limit. Where two chunks per rank are possible, zb-v has half the bubble in the same
    memory.

    p = 4, m = 5::

        r0 | F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4
        r1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4
        r2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 I4 W2 W3 W4
        r3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4

    Parameters
    ----------
    memory
        As of v-half; the default is p times the largest activation, what 1F1B and ZB-H1
        hold; 2p makes ZB-2p. One activation is the smallest that works.
    objective
        ``"makespan"``, or ``"stage-time"``, the largest time from a rank's first to last action,
        which the paper minimizes.
    """


@register(
    "zb-2p",
    title="Split backward, ordered for the costs in twice the memory of 1F1B",
    year=2023,
    source=SOURCE,
    chunks=1,
    aliases=("zb2p",),
    forms=_forms(2),
)
@scheduled(times=2)
def zb_2p() -> None:
    """ZB-Auto in twice the memory, enough to bridge most round trips.

    More memory seldom helps: rank 0 needs [(p − 1)(F + I + 2c) + pF]/F microbatches to work on
    until the first gradient is back (the paper's estimate), about 2p. In stage time this is what
    makes the bubble vanish; in makespan at most (p − 1)(F + c) is lost, which no memory can save.
    Parameters are those of :func:`zb_auto`.

    When to use it: one stage per rank, a backward that can be split, and twice the memory of 1f1b,
    with slow links or times that differ. Without either, zb-auto takes as long in half the memory,
    unless steps of ranks need not wait for each other.

    p = 3, m = 6::

        r0 | F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 .  .
        r1 | .  F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5 .
        r2 | .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
    """
