"""The model behind the page, without a page: look-ups and running sums beside plain ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

import debubble as db
from debubble.analysis.bubbles import CAUSES, bubbles
from debubble.core.actions import Kind, kinds_of, unpack
from debubble.lowering.chain import lower
from debubble.view.page import asset
from debubble.view.timeline_data import encode
from debubble.view.transfers import transfer_ends
from tests.view.timelines import pairs, run, two_copies, zero_bubble

CODE = "\n".join(asset(f"timeline/{name}.js") for name in ("marks", "payload", "model", "waits"))
COSTS = db.Costs(F=1, I=1, W=1, p2p=0.25)

CASES = {
    "1f1b": lambda: run("1f1b", 4, 8),
    "slices": lambda: run("seq1f1b", 2, 3, slices=2),
    "latency": lambda: db.simulate(db.make("zb-h1", ranks=3, microbatches=5), COSTS),
    "steps": lambda: db.simulate(db.make("1f1b", ranks=2, microbatches=2, iterations=2)),
    "pairs": pairs, "two copies": two_copies, "split": zero_bubble,
}  # fmt: skip
each_case = pytest.mark.parametrize("timeline", [make() for make in CASES.values()], ids=CASES)


@pytest.fixture(scope="module")
def model(browser):
    """Call a function of JavaScript with the run of a timeline."""
    page = browser.new_page()

    def call(timeline, body, *values):
        payload = json.loads(json.dumps(encode([timeline])))
        return page.evaluate(
            f"""async ([payload, values]) => {{
              {CODE}
              const {{ runs: [run] }} = await decode(payload);
              return ({body})(run, ...values);
            }}""",
            [payload, values],
        )

    yield call
    page.close()


def spans(timeline, rank):
    """Start and end of a rank's actions, in the order of its program."""
    part = slice(*timeline.schedule.offsets[rank : rank + 2].tolist())
    return timeline.start[part], timeline.end[part]


@each_case
def test_every_action_is_found_by_its_name_and_has_its_microbatch(model, timeline):
    schedule = timeline.schedule
    found = model(
        timeline,
        """(run) => Array.from({ length: run.count }, (_, i) => [run.place(i), run.actionName(i),
             run.named(run.actionName(i)), i, run.labelled(run.kind(i)),
             Array.from(run.ofUnit(run.unit[i])).includes(i)])""",
    )
    assert sorted(place for place, *_ in found) == list(range(len(schedule)))
    for place, name, again, i, labelled, member in found:
        action = unpack(int(schedule.actions[place]))
        assert name == schedule.text(action)
        assert again == i
        assert labelled == (action.kind != Kind.OPT)
        assert member == labelled


@each_case
def test_the_action_at_a_time_is_the_last_that_has_started(model, timeline):
    times = np.linspace(-0.3, timeline.makespan + 0.3, 40)
    find = """(run, rank, times) => {
      const [low, high] = run.row(rank);
      return times.map((time) => {
        const at = run.at(rank, time);
        return [at - low, at < low ? -1 : run.seek(low, high, time) - low];
      });
    }"""
    for rank in range(timeline.schedule.ranks):
        start, _ = spans(timeline, rank)
        wanted = np.searchsorted(np.sort(start), times, side="right") - 1
        found = np.array(model(timeline, find, rank, times.tolist()))
        assert found[:, 0].tolist() == found[:, 1].tolist() == wanted.tolist()


@each_case
def test_a_rank_is_busy_or_waits_for_the_cause_that_the_library_names(model, timeline):
    found = bubbles(timeline)
    state = """(run, rank, times) => times.map((time) => {
      const { bar, cause } = run.stateAt(rank, time);
      return bar === undefined ? run.causes[cause] : "busy";
    })"""
    state = state.replace("run.causes", json.dumps(encode([timeline])["causes"]))
    for rank in range(timeline.schedule.ranks):
        own = found.rank == rank
        middles = (found.start[own] + found.end[own]) / 2
        start, end = spans(timeline, rank)
        work = ((start + end) / 2)[end > start]
        names = model(timeline, state, rank, [*middles.tolist(), *work.tolist()])
        causes = encode([timeline])["causes"]
        wanted = [causes[cause] for cause in found.cause[own]]
        assert len(causes) == len(CAUSES)
        assert names == [*wanted, *["busy"] * len(work)]


@each_case
def test_running_sums_are_the_time_of_every_kind_until_then(model, timeline):
    schedule = timeline.schedule
    kinds = kinds_of(schedule.actions)
    sums = """(run, rank, times) => {
      const [low, high] = run.row(rank), out = new Float64Array(run.width);
      return [run.classes, times.map((time) => {
        run.sumsAt(run.at(rank, time), low, high, time, out);
        return Array.from(out);
      })];
    }"""
    times = np.linspace(0, timeline.makespan, 23)
    for rank in range(schedule.ranks):
        classes, found = model(timeline, sums, rank, times.tolist())
        begin, stop = schedule.offsets[rank : rank + 2].tolist()
        start, end = spans(timeline, rank)
        share = np.where(np.isin(np.arange(begin, stop), paired(schedule)), 0.5, 1.0)
        done = share * np.clip(times[:, None] - start, 0, end - start)
        for column, kind in enumerate(classes):
            wanted = done[:, kinds[begin:stop] == kind].sum(axis=1)
            np.testing.assert_allclose(np.array(found)[:, column], wanted, atol=1e-6)


def paired(schedule):
    """Positions of the halves of overlapped pairs, which have half of the pair's time each."""
    return np.flatnonzero((schedule.actions >> 5) & 3)


def test_transfers_are_in_the_order_of_their_start(model):
    plain = db.make("zb-h1", ranks=3, microbatches=5)
    look = """(run, rank) => {
      const [{ count, start, end, busy, by }] = run.transfers(rank);
      return [Array.from(start), Array.from(end), busy[count], by(start[1]), by(-1)];
    }"""
    for schedule in (plain, lower(plain, transfers="eager")):
        timeline = db.simulate(schedule, COSTS)
        for rank, wanted in enumerate((5, 10, 5)):
            start, end, busy, some, none = model(timeline, look, rank)
            assert len(start) == wanted
            assert start == sorted(start)
            np.testing.assert_allclose(np.subtract(end, start), 0.25, atol=1e-6)
            assert (busy, some, none) == (pytest.approx(0.25 * wanted), 2, 0)


@pytest.mark.parametrize("transfers", ["", "eager"])
def test_transfers_have_kinds_of_their_own_in_a_legend(model, transfers):
    """Whether they are actions or not; what is carried is of another kind and color."""
    schedule = db.make("1f1b", ranks=3, microbatches=2, carry=[(0, 2)])
    if transfers:
        schedule = lower(schedule, transfers=transfers)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.3, p2p_carry=2))
    look = (
        "(run) => run.kinds.map((kind, index) => [kind.name, kind.color, run.shows(index)])"
        ".filter(([name,, shown]) => shown && name.startsWith('SEND'))"
    )
    found = {name: color for name, color, _ in model(timeline, look)}
    assert set(found) == {"SEND_F", "SEND_B", "SEND_C", "SEND_CB"}
    assert len(set(found.values())) == 4
    sent = "(run) => run.transfers(0).map(({ kind }) => run.kinds[kind[0]].name)"
    assert model(timeline, sent) == ["SEND_F", "SEND_C"]


@pytest.mark.parametrize("transfers", ["", "eager"])
@pytest.mark.parametrize("mode", ["overlapped", "channel"])
def test_transfers_of_a_page_are_those_of_a_figure(model, mode, transfers):
    """What is carried, 2 long, is in a lane of its own; its link is busy, so that it queues."""
    schedule = db.make("1f1b", ranks=3, microbatches=4, carry=[(0, 2)])
    if transfers:
        schedule = lower(schedule, transfers=transfers)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.3, p2p_carry=2), mode)
    moved = transfer_ends(timeline)
    look = "(run, rank) => run.transfers(rank).map(({ start, end }) => [[...start], [...end]])"
    for rank in range(3):
        for carried, lane in enumerate(model(timeline, look, rank)):
            here = (moved.rank == rank) & ~moved.received & (moved.carried == carried)
            assert here.sum() == ((4, 8, 4), (4, 0, 4))[carried][rank]
            wanted = [np.sort(times[here]) for times in (moved.start, moved.end)]
            np.testing.assert_allclose(lane, wanted, atol=1e-6)
            np.testing.assert_allclose(np.subtract(lane[1], lane[0]), 2 if carried else 0.3)
