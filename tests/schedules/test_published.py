"""Numbers printed in papers or found with an independent simulator, and their formulas."""

from __future__ import annotations

from itertools import cycle, product

import pytest

import debubble as db
from debubble.schedules.forms import closed_forms
from tests.conftest import EXPLORES
from tests.forms import hold

# model, p, m, chunks; F, I, W, c in ms; published rates of 1F1B and interleaved 1F1B
ZERO_BUBBLE = [
    ("1.5B", 8, 24, 3, (18.522, 18.086, 9.337, 0.601), 0.2431, 0.1055),
    ("1.5B", 8, 64, 3, (18.546, 18.097, 9.321, 0.762), 0.1240, 0.0443),
    ("6.2B", 8, 24, 4, (29.718, 29.444, 19.927, 0.527), 0.2347, 0.0808),
    ("14.6B", 16, 48, 3, (11.347, 11.248, 8.132, 0.377), 0.2552, 0.1104),
    ("14.6B", 16, 128, 3, (11.325, 11.308, 8.109, 0.378), 0.1251, 0.0445),
    ("28.3B", 32, 96, 2, (10.419, 10.207, 7.715, 0.408), 0.2646, 0.1493),
]
each_model = pytest.mark.parametrize(
    ("model", "p", "m", "v", "times", "rate", "interleaved"), ZERO_BUBBLE
)


@each_model
def test_1f1b_with_latency_has_its_closed_form(
    model: str, p: int, m: int, v: int, times: tuple[float, ...], rate: float, interleaved: float
) -> None:
    F, I, W, c = times
    costs = db.Costs(F=F, I=I, W=W, p2p=c)
    schedule = db.make("1f1b", ranks=p, microbatches=m)
    timeline = db.simulate(schedule, costs)
    total = (m + p - 1) * (F + I + W) + 2 * c * ((p - 1) * m / p + p - 2)
    assert timeline.stage_time.max() == pytest.approx(total)
    assert round((total - m * (F + I + W)) / total, 4) == rate
    forms = [form for form in closed_forms(schedule, costs) if form.form.quantity == "makespan"]
    assert [form.value for form in forms] == [pytest.approx(timeline.makespan)]


@each_model
def test_interleaved_differs_from_the_paper_by_its_model_of_latency_only(
    model: str, p: int, m: int, v: int, times: tuple[float, ...], rate: float, interleaved: float
) -> None:
    F, I, W, c = times
    total = m * (F + I + W) + (p - 1) * (F + I + W) / v + (2 * p * v - 2 - p) * c
    assert round((total - m * (F + I + W)) / total, 4) == interleaved
    timeline = db.simulate(
        db.make("interleaved-1f1b", ranks=p, microbatches=m, chunks=v),
        db.Costs.per_rank(F=F, I=I, W=W, p2p=c),
    )
    assert timeline.makespan == pytest.approx(total + p * c)


@pytest.mark.parametrize(
    ("p", "times", "low", "high"),
    [
        (4, (1, 1, 1, 3), 6, 6),
        (4, (1, 1, 1, 2.5), 3.5, 4.5),
        (4, (10, 11, 7, 25), 57, 63),
        (4, (10, 14, 6, 26), 66, 74),
        (8, (1, 1, 1, 3), 14, 14),
        (8, (1, 1, 1, 2.5), 7.5, 10.5),
        (8, (10, 11, 7, 25), 129, 147),
        (8, (10, 14, 6, 26), 162, 186),
    ],
)
@pytest.mark.parametrize("more", [0, 1, 9])
def test_dualpipe_v_idle_time_does_not_depend_on_microbatches(
    p: int, times: tuple[float, ...], low: float, high: float, more: int
) -> None:
    F, I, W, O = times
    timeline = db.simulate(
        db.make("dualpipe-v", ranks=p, microbatches=2 * p + more), db.Costs(F=F, I=I, W=W, O=O)
    )
    idle = timeline.makespan - timeline.busy
    assert (idle.min(), idle.max()) == (low, high)
    # The published bubble (p − 1)(O + B − 3W) is the largest of these only when F = I = W.
    formula = (p - 1) * (O + I + W - 3 * W)
    assert idle.max() == formula if F == I == W else idle.max() < formula
    assert timeline.peak_activation.tolist() == [p + 0.5] * p


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
def test_dualpipe_is_two_dualpipe_vs_of_half_the_ranks(p: int) -> None:
    costs = db.Costs(F=10, I=11, W=7, O=25)
    both = db.simulate(db.make("dualpipe", ranks=p, microbatches=4 * p), costs)
    cut = db.simulate(db.make("dualpipe-v", ranks=p // 2, microbatches=2 * p), costs)
    # Microbatches turn on the innermost rank of the cut half and go on to a new rank in the whole.
    assert both.makespan == cut.makespan
    assert both.peak_activation.tolist() == [p + 1] * p


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_dualpipe_published_bubble_with_equal_thirds(p: int, more: int) -> None:
    timeline = db.simulate(
        db.make("dualpipe", ranks=2 * p, microbatches=4 * p + 2 * more), db.Costs(O=2.5)
    )
    idle = timeline.makespan - timeline.busy
    assert idle.max() == (p - 1) * (2.5 + 2 - 3)


def test_megatron_microbatches_in_groups() -> None:
    schedule = db.make("interleaved-1f1b", ranks=2, microbatches=5, chunks=2, group_size=3)
    program = [action for action in next(iter(schedule)) if action.kind == db.Kind.F]
    assert [action.microbatch for action in program] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [action.stage // 2 for action in program] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(("p", "m", "seconds"), [(4, 8, 57), (8, 16, 117)])
def test_interleaved_with_unit_forwards(p: int, m: int, seconds: float) -> None:
    schedule = db.make("interleaved-1f1b", ranks=p, microbatches=m, chunks=2)
    assert db.simulate(schedule, db.Costs(F=1, B=2)).makespan == seconds


@pytest.mark.parametrize("m", [1, 2, 4, 7, 8])
def test_few_microbatches_in_zero_bubble(m: int) -> None:
    p = 8
    F, I, W = 10.0, 11.0, 7.0
    costs = db.Costs(F=F, I=I, W=W)
    one = db.simulate(db.make("1f1b", ranks=p, microbatches=m), costs)
    split = db.simulate(db.make("zb-h1", ranks=p, microbatches=m), costs)
    assert one.makespan == (m + p - 1) * (F + I + W)
    assert split.makespan == (m + p - 1) * (F + I) + W


GRID = [
    *((p, m, v) for p in (1, 2, 3, 4) for m in (*range(1, 9), 12) for v in (1, 2, 3)),
    *((8, m, v) for m in (4, 7, 8, 16, 24) for v in (1, 2, 3)),
    (16, 8, 2), (16, 16, 1), (16, 32, 2), (16, 32, 3),
]  # fmt: skip
TIMES = [
    {"F": 1, "I": 1, "W": 1},
    {"F": 1, "I": 1, "W": 1, "O": 2.75},
    {"F": 2, "I": 3, "W": 1, "O": 5},
    {"F": 10, "I": 11, "W": 7, "O": 25, "p2p": 0.5},
    {"F": 1, "I": 1, "W": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_exact_forms_are_exact_and_bounds_are_bounds(
    entry: db.schedules.registry.Entry,
) -> None:
    checked = 0
    # Every other size comes with one of the times; to explore, all with all.
    cases = product(GRID, TIMES) if EXPLORES else zip(GRID[::2], cycle(TIMES), strict=False)
    for (p, m, v), times in cases:
        costs = db.Costs(**times)
        try:
            schedule = db.make(
                entry.name,
                ranks=p,
                microbatches=m,
                chunks=None if entry.chunks else v,
                costs=costs,
            )
        except db.ParameterError:
            continue
        checked += hold(schedule, costs, f"{entry.name} p={p} m={m} v={v}")
    assert checked > 20
