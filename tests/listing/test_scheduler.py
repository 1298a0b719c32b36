"""List scheduling: complete, within memory, the same every time, and as good as what is known."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from debubble import Costs, ParameterError, Placement, Schedule, simulate
from debubble.core.actions import Kind, kinds_of, microbatches_of, stages_of
from debubble.engine.timeline import Timeline
from debubble.listing import policies as known_policies
from debubble.listing import scheduler
from debubble.listing.kernel import read_policy, reset, run_pass, times_of
from debubble.listing.pass_state import (
    KEYS,
    NEVER,
    PARAMETERS,
    PARENTS,
    SearchTerms,
    TriedPolicies,
)
from debubble.listing.passes import Passes
from debubble.listing.policies import Policy
from debubble.listing.policy_search import try_policies
from debubble.listing.workload import Workload
from debubble.schedules.zb_v import published_order


def smallest_limits(placement: Placement, costs: Costs) -> NDArray[np.float64]:
    unlimited = np.full(placement.ranks, np.inf)
    return Workload(placement, costs.resolve(placement), 1, unlimited).smallest_limits


TIMES = st.integers(0, 24).map(lambda n: n / 4)


@dataclass(frozen=True)
class Case:
    placement: Placement
    costs: Costs
    microbatches: int
    memory: NDArray[np.float64]

    def solve(self, **options: object) -> Schedule:
        table = self.costs.resolve(self.placement)
        programs = scheduler.schedule(
            self.placement, table, self.microbatches, self.memory, **options
        )  # type: ignore[arg-type]
        return Schedule.from_programs("greedy", self.placement, self.microbatches, programs)

    def time(self, **options: object) -> Timeline:
        return simulate(self.solve(**options), self.costs)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    p = draw(st.integers(1, 8))
    v = draw(st.integers(1, 3))
    if draw(st.booleans()):
        return draw(st.sampled_from([Placement.wave, Placement.loop, Placement.block]))(p, v)
    homes = st.lists(st.integers(0, p - 1), min_size=p, max_size=2 * p)
    return Placement.explicit(draw(homes), p)


@st.composite
def cases(draw: st.DrawFn, microbatches: int = 24) -> Case:
    placement = draw(placements())
    ranks, stages = placement.ranks, placement.stages
    per_stage = st.lists(TIMES, min_size=stages, max_size=stages)
    links = st.lists(
        st.lists(TIMES, min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks
    )
    costs = Costs(
        F=draw(TIMES | per_stage),
        I=draw(TIMES | per_stage),
        W=draw(TIMES | per_stage),
        p2p=draw(TIMES | links),
        activation=draw(st.none() | per_stage),
        kept_for_weight=draw(st.sampled_from([0.0, 0.25, 1.0])),
    )
    smallest = smallest_limits(placement, costs)
    more = draw(st.lists(st.integers(0, 12), min_size=ranks, max_size=ranks))
    memory = smallest * (1 + np.array(more) / 4)
    return Case(placement, costs, draw(st.integers(1, microbatches)), memory)


@settings(max_examples=60)
@given(case=cases(), objective=st.sampled_from(scheduler.OBJECTIVES))
def test_every_order_runs_completely_within_the_memory(case: Case, objective: str) -> None:
    timeline = case.time(objective=objective, effort=0.2)
    assert timeline.graph.completed == case.placement.stages * case.microbatches
    assert len(timeline.schedule) == 3 * case.placement.stages * case.microbatches
    assert np.all(timeline.peak_activation <= case.memory + 1e-9)
    assert np.allclose(timeline.memory.left, 0, atol=1e-9)


@settings(max_examples=25)
@given(case=cases(microbatches=12))
def test_the_same_problem_has_the_same_answer(case: Case) -> None:
    first = case.solve(effort=0.2)
    scheduler._remembered.cache_clear()
    assert case.solve(effort=0.2) == first


UNEQUAL = Costs(F=[2, 3, 2, 3], I=[3, 3, 4, 3], W=[1, 2, 1, 2], p2p=0.5, activation=[1, 2, 1, 2])
ASKED = Case(Placement.v(2), UNEQUAL, 6, np.array([7.0, 7.0]))


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, placement=Placement.loop(2, 2)),
        replace(ASKED, costs=replace(UNEQUAL, F=[2, 3, 2, 3.5])),
        replace(ASKED, costs=replace(UNEQUAL, I=[3, 3.5, 4, 3])),
        replace(ASKED, costs=replace(UNEQUAL, W=[1.5, 2, 1, 2])),
        replace(ASKED, costs=replace(UNEQUAL, p2p=0.75)),
        replace(ASKED, costs=replace(UNEQUAL, activation=[1, 2, 1.5, 2])),
        replace(ASKED, costs=replace(UNEQUAL, kept_for_weight=0.5)),
        replace(ASKED, microbatches=7),
        replace(ASKED, memory=np.array([7.0, 8.0])),
    ],
)
def test_only_what_was_asked_before_is_not_searched_again(other: Case) -> None:
    scheduler._remembered.cache_clear()
    options = ({}, {"objective": "stage-time"}, {"effort": 0.3}, {"late": True})
    for _ in range(2):
        for case in (ASKED, other):
            for option in options:
                case.solve(recompute=np.full(4, True), **option)
    found = scheduler._remembered.cache_info()
    assert found.misses == 2 * len(options)
    assert found.hits == found.misses


@settings(max_examples=25)
@given(case=cases(microbatches=12))
def test_the_answer_does_not_depend_on_the_units(case: Case) -> None:
    scaled = Case(case.placement, case.costs.scaled(2.0**-40), case.microbatches, case.memory)
    assert scaled.solve(effort=0.2) == case.solve(effort=0.2)


@settings(max_examples=25)
@given(case=cases(microbatches=12))
def test_every_stage_keeps_microbatch_order(case: Case) -> None:
    schedule = case.solve(effort=0.2)
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        for stage in case.placement.stages_on(rank):
            for kind in (Kind.F, Kind.I, Kind.W):
                mine = program[(stages_of(program) == stage) & (kinds_of(program) == kind)]
                assert microbatches_of(mine).tolist() == list(range(case.microbatches))


@settings(max_examples=25)
@given(case=cases(microbatches=8), choice=st.lists(st.integers(0, 5), min_size=14, max_size=14))
def test_the_scheduler_knows_the_times_of_what_it_builds(case: Case, choice: list[int]) -> None:
    levels = list(known_policies.LEVELS.values())
    policies = [
        tuple(float(values[pick]) for values, pick in zip(levels, part, strict=True))
        for part in (choice[:7], choice[7:])
    ]
    table = case.costs.resolve(case.placement)
    passes = Passes(Workload(case.placement, table, case.microbatches, case.memory), "makespan")
    terms = SearchTerms(2, 40, 30 * passes.size, 0.1, passes.bound, False, passes.scale)
    results = []
    for run in (try_policies.compiled, try_policies.interpret):
        tried = TriedPolicies(
            np.zeros(41 * PARAMETERS), np.zeros(40 * KEYS), np.zeros(40),
            np.zeros(PARENTS, dtype=np.int64),
        )  # fmt: skip
        tried.policies[: 2 * PARAMETERS] = np.ravel(policies)
        count = run(
            2, passes.problem(), terms, known_policies.draws_for(40), passes.scratch, tried,
            passes.order,
        )  # fmt: skip
        results.append((count, *(part.tolist() for part in tried[:3]), passes.order.tolist()))
    assert results[0] == results[1]

    for policy in policies:
        found = passes.solved(policy)
        makespan, stage_time, share, steps = one_pass(passes, policy)
        assert (found.time, steps) == (makespan, passes.size)
        order = Schedule.from_programs("x", case.placement, case.microbatches, found.programs)
        timeline = simulate(order, case.costs)
        assert makespan == pytest.approx(timeline.makespan)
        assert stage_time == pytest.approx(timeline.stage_time.max())
        filled = np.divide(
            timeline.peak_activation, case.memory,
            where=case.memory > 0, out=np.zeros(case.placement.ranks),
        )  # fmt: skip
        assert share == pytest.approx(filled.max(), abs=1e-8)


def one_pass(
    passes: Passes, policy: Policy, give_up: float = NEVER
) -> tuple[float, float, float, int]:
    """Return makespan, stage time, share of a limit, and how many actions were placed."""
    by_stage_time, problem = passes.objective == "stage-time", passes.problem()
    rules = read_policy(np.array(policy), 0, problem)
    reset(rules, problem, passes.scratch)
    done, share, hopeless = run_pass(
        rules, problem, give_up, by_stage_time, passes.scratch, passes.order
    )
    makespan, stage_time = (NEVER, NEVER) if hopeless else times_of(problem, passes.scratch)
    return makespan, stage_time, share, done


def tight_passes(objective: str) -> Passes:
    """Passes on a V with memory for less than its ranks."""
    table = Costs(F=3, I=4, W=2).resolve(Placement.v(4))
    return Passes(Workload(Placement.v(4), table, 16, np.full(4, 3.0)), objective)


@pytest.mark.parametrize("objective", scheduler.OBJECTIVES)
def test_a_policy_is_dropped_exactly_when_it_cannot_stay_below_what_is_asked(
    objective: str,
) -> None:
    passes = tight_passes(objective)
    policy = known_policies.SEVERAL_STAGES[0]
    time = passes.solved(policy).time
    assert time > passes.bound + 20
    which = scheduler.OBJECTIVES.index(objective)
    kept = one_pass(passes, policy, time)
    assert (kept[which], kept[-1]) == (time, passes.size)
    dropped = one_pass(passes, policy, time - 0.5)
    assert dropped[which] == NEVER
    assert dropped[-1] < passes.size
    assert one_pass(passes, policy, passes.bound)[-1] < dropped[-1]


@pytest.mark.parametrize("objective", scheduler.OBJECTIVES)
def test_a_search_drops_what_is_worse_than_the_best_by_more_than_its_tolerance(
    objective: str,
) -> None:
    passes = tight_passes(objective)
    first, *others = known_policies.SEVERAL_STAGES
    best = passes.solved(first).time
    worse = next(one for one in others if passes.solved(one).time > best)
    share = passes.solved(worse).time / best - 1
    for tolerance, is_kept in ((share + 1e-6, True), (share - 1e-6, False)):
        found = passes.compare([first, worse], tolerance=tolerance)
        assert (found[worse].time < NEVER) == is_kept


def test_variations_are_new_and_differ_from_an_earlier_policy_in_one_to_three_numbers() -> None:
    passes = tight_passes("makespan")
    given = known_policies.SEVERAL_STAGES
    found = list(passes.compare(given, most=100))
    assert found[: len(given)] == [tuple(map(float, policy)) for policy in given]
    assert len(set(found)) == len(found) == 100
    for place in range(len(given), 100):
        changes = (sum(map(operator.ne, found[place], before)) for before in found[:place])
        assert 1 <= min(changes) <= 3


# Makespans of the best published scheduler, measured with an independent simulator.
REAL = {"F": 44.18, "I": 40.265, "W": 38, "p2p": 2.17}
UNIT = {"F": 1, "I": 1, "W": 1}


@pytest.mark.parametrize(
    ("p", "m", "times", "memory", "published"),
    [
        (4, 8, REAL, 4, 1144.94),
        (4, 8, REAL, 8, 1118.61),
        (4, 8, UNIT, 4, 27),
        (4, 16, REAL, 4, 2124.50),
        (4, 16, REAL, 8, 2098.17),
        (4, 16, UNIT, 4, 51),
        (8, 16, REAL, 8, 2345.00),
        (8, 16, REAL, 16, 2283.57),
        (8, 16, UNIT, 8, 55),
        (8, 32, REAL, 8, 4304.12),
        (8, 32, REAL, 16, 4242.69),
        (8, 32, UNIT, 8, 103),
    ],
)
def test_one_stage_per_rank_is_as_fast_as_the_zero_bubble_heuristic(
    p: int, m: int, times: dict[str, float], memory: float, published: float
) -> None:
    case = Case(Placement.linear(p), Costs(**times), m, np.full(p, float(memory)))
    assert case.time().makespan <= published + 1e-6


@pytest.mark.parametrize(
    ("p", "m", "times", "one", "two"),
    [
        (8, 24, (18.522, 18.086, 9.337, 0.601), 0.1585, 0.0433),
        (8, 64, (18.546, 18.097, 9.321, 0.762), 0.0674, 0.0026),
        (8, 24, (29.718, 29.444, 19.927, 0.527), 0.1323, 0.0029),
    ],
)
def test_stage_time_rates_of_zb_1p_and_zb_2p_as_published(
    p: int, m: int, times: tuple[float, float, float, float], one: float, two: float
) -> None:
    F, I, W, c = times
    # The paper's heuristic counts half of an activation as freed by I.
    costs = Costs(F=F, I=I, W=W, p2p=c, kept_for_weight=0.5)
    for factor, rate, close in ((1, one, 0.00005), (2, two, 0.0004)):
        case = Case(Placement.linear(p), costs, m, np.full(p, float(factor * p)))
        assert case.time(objective="stage-time").stage_bubble_rate <= rate + close


def test_a_published_order_that_is_better_is_taken_and_one_that_does_not_fit_is_not() -> None:
    placement = Placement.v(3)
    case = Case(placement, Costs(), 6, np.full(3, 3.0))
    published = list(published_order(3, 6))
    assert [p.tolist() for p in published] == [
        program.tolist()
        for program in scheduler.schedule(
            placement, Costs().resolve(placement), 6, 3, published=[published]
        )
    ]
    tight = Case(placement, case.costs, 6, np.full(3, 2.0))
    timeline = tight.time(published=[published])
    assert timeline.peak_activation.max() == 2
    assert (
        timeline.makespan > simulate(Schedule.from_programs("x", placement, 6, published)).makespan
    )


def test_policies_for_many_microbatches_are_compared_on_few() -> None:
    placement = Placement.v(4)
    costs = Costs(F=3, I=4, W=2)
    few, many = (
        Case(placement, costs, m, np.full(4, 3.0)).time().makespan - 18 * m for m in (32, 512)
    )
    assert few == many


@pytest.mark.parametrize(("p", "m", "memory"), [(8, 16, 7.0), (12, 24, 8.0)])
def test_more_effort_makes_it_better(p: int, m: int, memory: float) -> None:
    case = Case(Placement.v(p), Costs.per_rank(**REAL), m, np.full(p, memory))
    assert case.time(effort=8).makespan < case.time().makespan < case.time(effort=0.02).makespan


def test_no_limit_at_all_reaches_the_lower_bound() -> None:
    case = Case(Placement.v(4), Costs(F=2, I=3, W=1, p2p=0.5), 20, np.full(4, np.inf))
    # Rank 3 starts after three forwards and three transfers, then never waits.
    assert case.time().makespan == 3 * 2.5 + 20 * 12


@pytest.mark.parametrize("placement", [Placement.v(4), Placement.loop(3, 4), Placement.linear(5)])
def test_the_smallest_memory_works_and_less_is_refused(placement: Placement) -> None:
    sizes = np.arange(1, placement.stages + 1) / 7
    costs = Costs(activation=sizes.tolist())
    smallest = smallest_limits(placement, costs)
    rank_sums = [sizes[list(placement.stages_on(r))].sum() for r in range(placement.ranks)]
    assert smallest == pytest.approx(rank_sums)
    timeline = Case(placement, costs, 5, smallest).time()
    assert timeline.peak_activation == pytest.approx(smallest)

    less = smallest.copy()
    less[1] *= 0.999999
    with pytest.raises(ParameterError, match=rf"too small for rank 1.*at least {smallest[1]:.12g}"):
        Case(placement, costs, 5, less).solve()


def test_one_limit_for_all_names_the_rank_that_needs_most() -> None:
    costs = Costs(activation=[1, 1, 5, 1, 1, 1])
    with pytest.raises(ParameterError) as error:
        Case(Placement.v(3), costs, 5, np.array(1.5)).solve()
    assert str(error.value) == (
        "memory 1.5 is too small for rank 2, where one microbatch leaves 6; give at least 6"
    )


@pytest.mark.parametrize("memory", [np.ones(3), np.ones((2, 2)), np.full(4, np.nan)])
def test_limits_of_the_wrong_shape_or_kind_are_refused(memory: NDArray[np.float64]) -> None:
    with pytest.raises(ParameterError, match=r"memory (has \d limits for 4 ranks|nan)"):
        Case(Placement.v(4), Costs(), 5, memory).solve()


def test_an_unknown_objective_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match="objective is 'stagetime'; did you mean 'stage-time'"):
        Case(Placement.v(2), Costs(), 4, np.array(2.0)).solve(objective="stagetime")


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many actions each call of the kernel places."""
    found: list[int] = []

    class Counted:
        @staticmethod
        def run(*arguments):  # type: ignore[no-untyped-def]
            result = try_policies.run(*arguments)
            found.append(result[1])
            return result

    monkeypatch.setattr("debubble.listing.passes.try_policies", Counted)
    return found


def test_the_budget_is_kept(placed: list[int]) -> None:
    table = Costs.per_rank(**REAL).resolve(Placement.v(8))
    passes = Passes(Workload(Placement.v(8), table, 60, np.full(8, 4.0)), "makespan")
    scheduler._search(passes, 1.0)
    # The search, and the best policy once more for its order.
    assert sum(placed) <= scheduler.SMALLEST_BUDGET + passes.size
    assert sum(placed) > scheduler.SMALLEST_BUDGET / 2


@pytest.mark.parametrize(("memory", "long"), [(8.0, False), (5.0, False), (2.0, True)])
def test_many_microbatches_on_a_v_take_few_policies_unless_memory_is_tight(
    placed: list[int], memory: float, long: bool
) -> None:
    table = Costs.per_rank(**REAL).resolve(Placement.v(8))
    passes = Passes(Workload(Placement.v(8), table, 200, np.full(8, memory)), "makespan")
    found = scheduler._search(passes, 1.0)
    assert (sum(placed) > scheduler.QUICK_BUDGET + passes.size) == long
    assert long or found.time <= passes.bound * (1 + scheduler.CLOSE)


def test_few_policies_are_only_known_for_a_v_with_the_memory_of_zb_v_or_v_half() -> None:
    assert known_policies.few_policies(Placement.v(8), 8) == known_policies.ROOMY_WAVE
    assert known_policies.few_policies(Placement.v(8), 5) == known_policies.HALF_WAVE
    assert known_policies.few_policies(Placement.v(8), np.inf) == known_policies.ROOMY_WAVE
    for placement in (Placement.linear(8), Placement.loop(8, 2), Placement.wave(8, 4)):
        assert known_policies.few_policies(placement, 8) == ()
    for memory in (4, 4.9, 6):
        assert known_policies.few_policies(Placement.v(8), memory) == ()
