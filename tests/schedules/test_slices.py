"""Seq1F1B, TeraPipe, SlimPipe and MEPipe: published numbers, formulas over a grid, limits."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.sequence import show
from debubble.schedules.forms import closed_forms
from tests.pairs import covering

SLICED = ("seq1f1b", "terapipe", "slimpipe", "mepipe")
ONE_CHUNK = ("seq1f1b", "terapipe")


def made(name: str, p: int, m: int, v: int = 1, **options: Any) -> db.Schedule:
    chunks = None if name in ONE_CHUNK else v
    return db.make(name, ranks=p, microbatches=m, chunks=chunks, **options)


@pytest.mark.parametrize(
    ("p", "m", "s", "makespan"),
    [(4, 8, 1, 33), (4, 8, 2, 28.5), (4, 8, 4, 26.25), (8, 16, 4, 53.25)],
)
def test_seq1f1b_numbers(p: int, m: int, s: int, makespan: float) -> None:
    timeline = db.simulate(made("seq1f1b", p, m, slices=s), db.Costs(F=1, B=2))
    assert timeline.makespan == makespan
    assert timeline.makespan == m * 3 + (p - 1) * 3 / s
    assert (timeline.peak_activation * s).tolist() == [s + p - 1 - r for r in range(p)]


def test_seq1f1b_takes_slices_in_order_and_back() -> None:
    schedule = made("seq1f1b", 2, 2, slices=3)
    assert show(schedule.program(1), 3) == (
        "1F0.0 1F0.1 1F0.2 1B0.2 1F1.0 1B0.1 1F1.1 1B0.0 1F1.2 1B1.2 1B1.1 1B1.0"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SLICED)
def test_forms_hold_on_a_grid(name: str) -> None:
    rng = np.random.default_rng(0)
    seen: dict[str, int] = {}
    chunks = (1,) if name in ONE_CHUNK else (1, 2, 3)
    sizes = product((1, 2, 3, 4, 7), (1, 2, 3, 8), chunks, (1, 2, 3, 4, 8))
    for p, m, v, s in covering(sizes, strength=3):
        W = rng.uniform(0.2, 2)
        F, I = W + rng.uniform(0, 2, 2) if name == "mepipe" else rng.uniform(0.2, 2, 2)
        costs = db.Costs(F=F, I=I, W=W, attention=rng.choice([0.0, 0.4]), exchange=0.1)
        try:
            schedule = made(name, p, m, v, slices=s, costs=costs)
        except db.ParameterError:
            assert s < p
            continue
        assert db.check(schedule).ok
        timeline = db.simulate(schedule, costs)
        for item in closed_forms(schedule, costs):
            measured = getattr(timeline, item.form.quantity)
            if not isinstance(item.value, list):
                measured = np.max(measured)
            assert measured == pytest.approx(item.value), (name, p, m, v, s, item.form.text)
            seen[item.form.quantity] = seen.get(item.form.quantity, 0) + 1
    assert seen["makespan"] > 30
    assert seen["peak_activation"] > 30


@pytest.mark.parametrize("name", ONE_CHUNK)
def test_even_flops_level_out_attention(name: str) -> None:
    costs = db.Costs(F=4, I=6, W=2, attention=0.5)
    by_tokens, by_flops = (
        db.simulate(made(name, 8, 4, slices=4, costs=costs, cut=cut), costs)
        for cut in ("tokens", "flops")
    )
    assert by_flops.makespan == pytest.approx(4 * 12 + 7 * 12 / 4)
    assert by_flops.makespan < by_tokens.makespan
    assert by_tokens.peak_activation.max() <= by_flops.peak_activation.max()
    assert by_flops.busy == pytest.approx(by_tokens.busy)
    # Without attention there is nothing to level out.
    assert made(name, 8, 4, cut="flops").cut == ()


def test_even_flops_of_stages_of_their_own() -> None:
    costs = db.Costs(F=[1, 3], B=2, attention=[0, 1])
    schedule = made("seq1f1b", 2, 2, slices=3, costs=costs)
    table = costs.resolve(schedule.placement, schedule.slicing)
    per_slice = table.duration[db.Kind.F].reshape(3, 2).sum(axis=1)
    assert per_slice == pytest.approx([4 / 3] * 3)


def least_by_dynamic_program(times: list[list[float]], slices: int, ranks: int) -> float:
    """TeraPipe's objective Σt + (p − 1) max t over all cuts of a grid of token blocks.

    ``times[a][b]`` is the time of a slice from block a to block b. For every bound on max t that
    can matter, the least Σt within it by dynamic programming.
    """
    blocks = len(times) - 1
    best = np.inf
    for bound in sorted({times[a][b] for a in range(blocks) for b in range(a + 1, blocks + 1)}):
        least = {0: 0.0}
        for _ in range(slices):
            least = {
                b: min(least[a] + times[a][b] for a in least if a < b and times[a][b] <= bound)
                for b in range(1, blocks + 1)
                if any(a < b and times[a][b] <= bound for a in least)
            }
        if blocks in least:
            best = min(best, least[blocks] + (ranks - 1) * bound)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("attention", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("p", "s"), [(2, 2), (4, 3), (8, 4)])
def test_terapipe_cuts_as_its_dynamic_program(p: int, s: int, attention: float) -> None:
    # Attention costs twice as much backwards, all of it in I.
    costs = db.Costs(F=1, I=1 + attention, W=1 - attention, attention=attention)
    blocks = 30
    ends = np.arange(blocks + 1) / blocks
    work = (1 - attention) * ends + attention * ends**2
    times = (work[None, :] - work[:, None]).tolist()
    best = least_by_dynamic_program(times, s, p)
    schedule = made("terapipe", p, 1, slices=s, costs=costs)
    forward = 1 + (p - 1) / s
    assert db.simulate(schedule, costs).makespan == pytest.approx(3 * forward)
    # The program cuts between blocks only: it is never better, and at most two blocks worse.
    assert forward - 1e-9 <= best <= forward + (p - 1) * 2 * (1 + attention) / blocks


def test_slimpipe_holds_little_more_than_one_microbatch() -> None:
    for p, v, s in ((4, 1, 4), (4, 2, 8), (8, 2, 16), (8, 1, 3)):
        timeline = db.simulate(made("slimpipe", p, 8, v, slices=s))
        assert timeline.peak_activation == pytest.approx(
            [1 + 2 * (p - 1 - r) / (v * s) for r in range(p)]
        )


def test_slimpipe_hides_latency_that_seq1f1b_pays() -> None:
    costs = db.Costs(F=1, B=2, p2p=0.1)
    one, two = (
        db.simulate(made(name, 8, 16, slices=8), costs).makespan for name in ("seq1f1b", "slimpipe")
    )
    ideal = 16 * 3 + 7 * 3 / 8
    assert two == pytest.approx(ideal + 2 * 7 * 0.1)
    assert one > ideal + 10 * 2 * 7 * 0.1


def test_exchange_levels_out_slices_and_costs_what_it_costs() -> None:
    costs = db.Costs(F=1, B=2, attention=0.5, exchange=0.25)
    evened = db.simulate(made("slimpipe", 4, 4, slices=4), costs)
    assert evened.schedule.exchange
    assert evened.makespan == pytest.approx((4 * 4 + 3) * (1.25 + 2.5) / 4)
    causal = db.simulate(made("slimpipe", 4, 4, slices=4, exchange=False), costs)
    assert causal.busy == pytest.approx([12] * 4)
    assert causal.makespan > (4 * 4 + 3) * 3 / 4
    assert not made("slimpipe", 4, 4, slices=1).exchange


@pytest.mark.parametrize(("s", "saved"), [(4, 0.70), (8, 0.82)])
def test_mepipe_saves_the_published_share_of_memory(s: int, saved: float) -> None:
    # The paper gives 70 % at 4 slices and 80 % at 8; 1F1B holds p microbatches.
    timeline = db.simulate(made("mepipe", 8, 16, 2, slices=s))
    units = 2 * max(8, s) + min(8, s) - 1
    assert timeline.peak_activation.tolist() == [units / (2 * s)] * 8
    assert 1 - timeline.peak_activation.max() / 8 == pytest.approx(saved, abs=0.005)


def test_mepipe_runs_with_any_number_in_flight() -> None:
    costs = db.Costs(F=4, I=4, W=4)
    for p, m, v, s in ((4, 8, 2, 4), (3, 4, 1, 2), (5, 6, 2, 2), (1, 2, 2, 3)):
        least = made("mepipe", p, m, v, slices=s)
        default = round(float(db.simulate(least, costs).peak_activation.max()) * v * s)
        spans = []
        for in_flight in range(default - p + 1, default + p):
            schedule = made("mepipe", p, m, v, slices=s, in_flight=in_flight)
            assert db.check(schedule).ok
            timeline = db.simulate(schedule, costs)
            assert timeline.peak_activation.max() * v * s == pytest.approx(in_flight)
            spans.append(timeline.makespan)
        # Up to the default each one more is faster; above it memory buys latency, not time.
        assert (np.diff(spans[:p]) < 0).all()


def test_mepipe_with_twice_the_ramp_has_no_idle_time_within_a_rank() -> None:
    timeline = db.simulate(
        made("mepipe", 4, 8, 1, slices=4, in_flight=4 + 6), db.Costs(F=4, I=4, W=4)
    )
    assert timeline.stage_time == pytest.approx(timeline.busy)


@pytest.mark.parametrize("name", SLICED)
def test_files_keep_what_a_schedule_is(name: str, tmp_path: Path) -> None:
    costs = db.Costs(attention=0.5)
    schedule = made(name, 2, 3, slices=3, costs=costs)
    schedule.save(tmp_path / "x.json")
    again = db.load(tmp_path / "x.json")
    assert again == schedule
    assert again.name == name
    assert db.simulate(again, costs).makespan == db.simulate(schedule, costs).makespan


def test_outputs_say_how_microbatches_are_cut() -> None:
    costs = db.Costs(F=1, B=2, attention=0.25, exchange=0.5, kv=1)
    result = db.compare(["1f1b", "seq1f1b", "slimpipe"], ranks=2, microbatches=2, costs=costs)
    words = result.conventions()["slices"]
    assert "seq1f1b: 4 of 30.3, 25.9, 23, 20.9 % of the tokens" in words
    assert "attention (25.00 % of F) by causal area" in words
    assert "slimpipe: 4 of equal length" in words
    assert "by tokens; ranks exchange attention context for 0.5" in words
    assert f"slices: {words}" in " ".join(str(result).split())
    assert "keys, values and their gradients" in result.conventions()["memory"]
    assert "slices" not in db.compare(["1f1b"], ranks=2, microbatches=2).conventions()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("seq1f1b", {"cut": "dp"}, "needs a cut into slices of the same 'flops' or 'tokens'; cut"),
        ("seq1f1b", {"slices": 0}, "slices is 0; it goes from 1 to 1,024"),
        ("terapipe", {"slices": 2.0}, r"slices is 2\.0; give a value of type int"),
        (
            "slimpipe",
            {"chunks": 2, "slices": 3},
            "at least as many slices as ranks where .* slices is 3; the nearest that works is 4",
        ),
        ("mepipe", {"chunks": 2, "in_flight": 7}, "in_flight is 7; the nearest that works is 8"),
        ("mepipe", {"chunks": 2, "in_flight": 15}, "in_flight is 15; the nearest that works is 14"),
        (
            "seq1f1b",
            {"slices": 1024, "microbatches": 1 << 20},
            "actions; the limit is 200,000,000",
        ),
    ],
)
def test_refusals(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.make(name, **({"ranks": 4, "microbatches": 8} | options))


def test_formulas_of_memory_do_not_speak_of_keys_and_values() -> None:
    for name in ("1f1b", "seq1f1b"):
        schedule = db.make(name, ranks=2, microbatches=4)
        quantities = [
            {item.form.quantity for item in closed_forms(schedule, db.Costs(kv=kv))}
            for kv in (0, 1)
        ]
        assert quantities == [{"makespan", "peak_activation"}, {"makespan"}]
