"""The component knows no kind of action: names, needs and streams that it is sent are enough."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import kinds_of, pairs_of, unpack
from debubble.core.kinds import COMPUTE_KINDS, KINDS, Kind, Stream
from debubble.core.waits import waits_for
from debubble.interchange.trace_events import trace_text
from debubble.lowering.chain import lower
from debubble.schedules.registry import find
from debubble.view import page as pages
from debubble.view.colors import COLOR, PALETTES, STACKED, Palette, contrast, text_color
from debubble.view.files import save
from debubble.view.timeline_data import encode
from tests.browser import Pages
from tests.conftest import EXPLORES
from tests.pairs import sorts
from tests.small import smallest
from tests.view.timelines import pairs, run, two_copies, zero_bubble

HOST = "document.querySelector('debubble-timeline')"
COSTS = db.Costs(F=1, I=1.25, W=0.75, p2p=0.5, OPT=0.25)
SHARDED = db.Costs(F=1, B=2, p2p=0.5, reduce_grad=0.5, unshard=0.25)
COPYING = db.Costs(F=1, B=2, p2p=0.5, activation=1, host_bandwidth=2, bandwidth=4)
HEAD = db.Costs(F=1, B=2, p2p=0.5, head={"F": 3, "B": 3})


def simulated(schedule, costs=COSTS):
    import warnings

    with warnings.catch_warnings():
        # Of orders that were made for other costs.
        warnings.simplefilter("ignore", UserWarning)
        return db.simulate(schedule, costs)


def family(name, **options):
    return simulated(smallest(find(name), **options))


def lowered(name, costs=COSTS, **options):
    return simulated(lower(db.make(name, ranks=3, microbatches=6), costs=costs, **options), costs)


CASES = {
    **{entry.name: lambda entry=entry: family(entry.name)
       for of_sort in sorts().values() for entry in of_sort[: None if EXPLORES else 1]},
    "1f1b": lambda: family("1f1b"),
    "seq1f1b": lambda: simulated(db.make("seq1f1b", ranks=4, microbatches=12)),
    "steps-global": lambda: family("1f1b", iterations=3, sync="global"),
    "steps-local": lambda: family("1f1b", iterations=3, sync="local"),
    "steps-post-validation": lambda: family("1f1b", iterations=3, sync="post-validation"),
    "recompute": lambda: lowered("1f1b", recompute="full"),
    "late-recompute": lambda: lowered("zb-h1", recompute="full", recompute_at="with-backward"),
    "transfers": lambda: lowered("zb-v", transfers="eager"),
    "queued-transfers": lambda: lowered("seq1f1b", transfers="queued"),
    "carries": lambda: lowered("zb-h1", carry=[(0, 2)]),
    "carries-sent": lambda: lowered("1f1b", carry=[(0, 2)], transfers="eager"),
    "offload": lambda: lowered("1f1b", COPYING, offload="full"),
    "copies-to-ranks": lambda: simulated(db.make("bpipe", ranks=4, microbatches=8), COPYING),
    "fsdp": lambda: lowered("interleaved-1f1b", SHARDED, sharding="fsdp"),
    "everything": lambda: lowered("1f1b", COPYING, recompute="full", offload="full",
                                  transfers="eager", sharding="fsdp"),
    "vocabulary": lambda: simulated(db.make("vocab-1", ranks=3, microbatches=4), HEAD),
    "vocabulary-2-late": lambda: simulated(lower(db.make("vocab-2", ranks=3, microbatches=4),
                                                 recompute="full", recompute_at="with-backward"),
                                           HEAD),
    "pairs": pairs, "two-copies": two_copies, "split": zero_bubble,
}  # fmt: skip


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page that shows what it is told to."""
    path = tmp_path_factory.mktemp("kinds") / "x.html"
    save([run("1f1b", 2, 2)], path)
    with Pages(browser).opened() as visit:
        yield visit(path.as_uri())


def show(page, timeline):
    """The page shows a timeline, in milliseconds; rows in the order of its positions."""
    payload = encode([timeline], time_unit="ms")
    page.evaluate(f"(payload) => {HOST}.load(payload)", json.loads(json.dumps(payload)))


@pytest.mark.parametrize("case", CASES)
def test_the_page_knows_what_waits_for_what(page, case):
    timeline = CASES[case]()
    schedule = timeline.schedule
    show(page, timeline)
    found = page.evaluate(f"""() => {{
      const run = {HOST}.data.runs[0], all = Array.from({{ length: run.count }}, (_, i) => i);
      const places = (list) => list.map((i) => run.place(i)).sort((a, b) => a - b);
      return all.map((i) => ({{ place: run.place(i), rank: run.rank(i), name: run.actionName(i),
        producers: places(run.waits.producers(i)), consumers: places(run.waits.consumers(i)),
        before: places(run.waits.before(i)), after: places(run.waits.after(i)) }}));
    }}""")
    waits = waits_for(schedule)
    turns = turns_before(schedule)
    assert sorted(action["place"] for action in found) == list(range(len(schedule)))
    by_place = {action["place"]: action for action in found}
    for place, action in by_place.items():
        assert action["rank"] == schedule.rank_of(place)
        assert action["name"] == schedule.text(unpack(int(schedule.actions[place])))
        assert action["producers"] == sorted(set(waits.of(place).tolist())), action["name"]
        for other in action["consumers"]:
            assert place in by_place[other]["producers"]
        for other in action["before"]:
            assert other < place
            assert place in by_place[other]["after"], action["name"]
        for other in action["after"]:
            assert place in by_place[other]["before"], action["name"]
        # Nothing is missing the other way round.
        for other in action["producers"]:
            assert place in by_place[other]["consumers"]
        assert action["before"] == turns[place], action["name"]


def turns_before(schedule):
    """What runs just before each action: on its stream, and the work that it is issued after."""
    streams = [KINDS[kind].stream for kind in kinds_of(schedule.actions).tolist()]
    lanes = pairs_of(schedule.actions).tolist()
    turns = []
    for begin, end in pairwise(schedule.offsets.tolist()):
        for place in range(begin, end):
            program = range(begin, place - (lanes[place] == 2))
            found = set()
            for stream in {streams[place], Stream.COMPUTE}:
                own = [other for other in program if streams[other] == stream]
                found.update(own[-1:])
                if own and lanes[own[-1]] == 2 and stream == streams[place]:
                    found.add(own[-2])
            turns.append(sorted(found))
    return turns


TRACES = ["1f1b", "transfers", "queued-transfers", "offload", "copies-to-ranks", "fsdp",
          "everything", "vocabulary", "late-recompute", "seq1f1b", "pairs", "two-copies",
          "steps-global"]  # fmt: skip


@pytest.mark.parametrize("case", TRACES)
def test_the_trace_of_the_page_is_that_of_the_library(page, case, tmp_path):
    timeline = CASES[case]()
    show(page, timeline)
    # A browser blocks the eleventh download of a page that nobody clicks in.
    page.locator("debubble-timeline details.menu summary").click()
    with page.expect_download() as started:
        page.locator("debubble-timeline [data-do=trace]").click()
    started.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    wanted = json.loads("".join(trace_text(timeline, "ms")))["traceEvents"]

    def threads(events):
        return {json.dumps(event, sort_keys=True) for event in events if event["ph"] == "M"}

    def slices(events):
        return {
            (e["name"], e["cat"], e["pid"], e["tid"], json.dumps(e["args"], sort_keys=True)): (
                e["ts"], e["dur"],
            )
            for e in events
            if e["ph"] == "X"
        }  # fmt: skip

    def arrows(events):
        ends = {}
        for event in events:
            if event["ph"] in "sf":
                where = (event["pid"], event["tid"], round(event["ts"], 2))
                ends.setdefault((event["name"], event["id"]), {})[event["ph"]] = where
        return sorted((name, end["s"], end["f"]) for (name, _), end in ends.items())

    def crossings(events):
        """An arrow for every wait between ranks, from slice to slice."""
        schedule, at = timeline.schedule, {}
        for event in events:
            if event["ph"] == "X":
                at[event["name"], event["pid"]] = event
        found = []
        waits = waits_for(schedule)
        for consumer, producer in zip(waits.consumer, waits.producer, strict=True):
            ends = [
                at[schedule.text(unpack(int(schedule.actions[p]))), schedule.rank_of(int(p))]
                for p in (producer, consumer)
            ]
            if ends[0]["pid"] != ends[1]["pid"]:
                leaves = (ends[0]["ts"] + 0.999 * ends[0]["dur"], ends[1]["ts"])
                found.append((KINDS[Kind[ends[0]["cat"]]].title, *(
                    (end["pid"], end["tid"], round(ts, 2))
                    for end, ts in zip(ends, leaves, strict=True)
                )))  # fmt: skip
        return sorted(found)

    assert threads(events) == threads(wanted)
    drawn, known = slices(events), slices(wanted)
    assert drawn.keys() == known.keys()
    for key, times in known.items():
        assert drawn[key] == pytest.approx(times, abs=0.0011), key
    assert sum(e["ph"] == "X" for e in events) == sum(e["ph"] == "X" for e in wanted)
    assert arrows(events) == crossings(wanted)
    assert arrows(events)


def test_passes_of_the_output_layer_are_work(page):
    """Of 84 units of time 24 are theirs: no unit is without a kind or a cause."""
    timeline = CASES["vocabulary"]()
    show(page, timeline)
    legend = page.locator("debubble-timeline .legend").inner_text()
    assert "S output layer, first pass" in legend
    page.keyboard.press("0")
    page.evaluate(f"{HOST}.areaOfView()")
    text = page.locator("debubble-timeline .details").inner_text()
    busy = dict(re.findall(r"(\w+) ([0-9.]+) ms \(", text))
    kinds = kinds_of(timeline.schedule.actions)
    for kind in (Kind.F, Kind.B, Kind.S, Kind.T):
        assert float(busy[kind.name]) == pytest.approx(timeline.duration[kinds == kind].sum())
    assert float(busy["S"]) + float(busy["T"]) > 0
    assert sum(map(float, busy.values())) == pytest.approx(3 * timeline.makespan)
    page.keyboard.press("Escape")


def test_passes_of_the_output_layer_are_on_the_way_of_their_microbatch(page):
    timeline = CASES["vocabulary"]()
    schedule = timeline.schedule
    show(page, timeline)
    joined, outlined = page.evaluate(f"""() => {{
      const host = {HOST}, run = host.data.runs[0], i = run.named("0S1"), lines = [];
      for (const j of run.workOf(1)) {{
        const line = run.waits.way(j);
        if (line) lines.push(`${{run.actionName(line.from)}} ${{run.actionName(j)}}`);
      }}
      const {{ outline }} = host;
      let only = 0;
      host.outline = () => {{ only++; }};
      host.lightWay(host.parts.surface.getContext("2d"), host.view.panels[0], i, 0.5);
      host.outline = outline;
      return [lines.sort(), only];
    }}""")
    ways = ["0F1 1F1", "1F1 2F1", "2B1 1B1", "1B1 0B1"]
    ways += [f"2F1 {rank}S1" for rank in range(3)]
    # Of all shards the one that is done last, which decides.
    ends = {
        schedule.text(unpack(int(code))): float(end)
        for code, end in zip(schedule.actions, timeline.end, strict=True)
    }
    first, second = (max((f"{rank}{k}1" for rank in range(3)), key=ends.__getitem__) for k in "ST")
    ways += [f"{first} {rank}T1" for rank in range(3)]
    ways += [f"{second} 2B1"]
    assert joined == sorted(ways)
    assert outlined == 0


def test_the_way_has_dashes_to_what_no_work_waits_for(page):
    show(page, lowered("zb-h1", recompute="full"))
    ways = page.evaluate(f"""() => {{
      const run = {HOST}.data.runs[0];
      return [...run.workOf(2)].map((j) => [j, run.waits.way(j)]).filter(([, line]) => line)
        .map(([j, {{ from, dashed }}]) => [run.actionName(from), run.actionName(j), dashed]);
    }}""")
    dashed = {(a, b) for a, b, dotted in ways if dotted}
    assert dashed == {(f"{stage}I2", f"{stage}W2") for stage in range(3)}
    assert not any("R" in a + b for a, b, _ in ways)


def test_slices_have_the_names_that_everything_else_gives_them(page):
    show(page, CASES["seq1f1b"]())
    page.evaluate(f"{HOST}.state = 'a=0.1F2.1'")
    text = page.locator("debubble-timeline .details").inner_text()
    assert text.startswith("1F2.1 on rank 1")
    assert "0F2.1 (rank 0)" in text
    assert "1F2.0 (rank 1)" in text
    assert re.search(r"microbatch\n2\nslice\n1\n", text)
    assert "a=0.1F2.1" in page.evaluate(f"{HOST}.state")
    names = f"(text) => {HOST}.matches(text).map((at) => {HOST}.data.runs[0].actionName(at.index))"
    assert page.evaluate(names, "1F2.1") == ["1F2.1"]
    assert page.evaluate(names, "1F2") == [f"1F2.{part}" for part in range(4)]
    assert len(page.evaluate(names, "m2")) == 4 * 4 * 2
    label = f"""() => {{
      const run = {HOST}.data.runs[0], i = run.named("1F2.1"), kept = run.first;
      run.first = 1;
      const label = run.label(i);
      run.first = kept;
      return label; }}"""
    assert page.evaluate(label) == "3.1"
    show(page, run("seq1f1b", 2, 2, slices=2))
    svg = page.evaluate(f"""() => new Promise((done) => {{
      const {{ createObjectURL }} = URL;
      URL.createObjectURL = (blob) => {{
        URL.createObjectURL = createObjectURL;
        blob.text().then(done);
        return createObjectURL(blob);
      }};
      {HOST}.parts.tools.querySelector("[data-do=svg]").click();
    }})""")
    assert {f">{unit}</text>" for unit in ("0.0", "0.1", "1.0", "1.1")} <= set(
        re.findall(r">[0-9.]+</text>", svg)
    )


def test_actions_of_side_streams_can_be_found_and_selected(page):
    show(page, CASES["everything"]())
    for name, wanted in [("1UNSHARD0", "gather weights"), ("0RECV_B3", "receipt of a gradient")]:
        page.evaluate(f"{HOST}.state = 'a=0.{name}'")
        text = page.locator("debubble-timeline .details").inner_text()
        assert text.startswith(f"{name} on rank")
        assert wanted in text
    assert "1SEND_B3 (rank 1)" in text


ASSETS = Path(pages.__file__).parent / "assets" / "timeline"


@pytest.mark.parametrize("path", sorted(ASSETS.glob("*.js")), ids=lambda path: path.stem)
def test_no_script_names_or_numbers_a_kind(path):
    text = path.read_text("utf-8")
    names = "|".join(sorted((kind.name for kind in Kind), key=len, reverse=True))
    # Operators and fonts of PDF, and a key of the keyboard.
    allowed = {"vector": {'"S"', '"B"', '"R"'}, "input": {'"F"'}}.get(path.stem, set())
    assert set(re.findall(rf"""["'`](?:{names})["'`]""", text)) <= allowed
    # A place in a list that is less than 0 is none.
    number = r"kind\w*(?:\([^()]*\)|\[[^\]]*\])*\s*(?!< 0)(?:[<>]=?|[!=]==?)\s*\d"
    assert not re.findall(number, text, re.I)
    assert not re.findall(rf"\b(?:{'|'.join(k.name for k in Kind if len(k.name) > 1)})\b", text)


def test_every_kind_can_be_drawn():
    (timeline,) = encode([run("1f1b", 2, 2)])["timelines"]
    for kind in Kind:
        for color, ink in timeline["palette"][kind]:
            assert contrast(color, ink) >= 4.5
    payload = encode([run("1f1b", 2, 2)])
    assert [kind["name"] for kind in payload["kinds"]] == [kind.name for kind in Kind]
    assert payload["stacked"] == list(STACKED)
    assert {payload["streams"][kind["stream"]] for kind in payload["kinds"]} == {
        "compute", "transfers", "host copy", "collectives",
    }  # fmt: skip


@pytest.mark.slow
def test_a_kind_without_colors_of_its_own_gets_some(monkeypatch, tmp_path):
    bare = Palette("bare", {}, {})
    colors = {bare.shade(kind) for kind in COMPUTE_KINDS}
    assert len(colors) == len(COMPUTE_KINDS)
    assert all(contrast(color, text_color(color)) >= 4.5 for color in colors)
    assert bare.shade(Kind.SEND_F) == bare.shade(Kind.RECV_F) == bare.shade(Kind.F)
    assert len({bare.shade(Kind.S, index, 4) for index in range(4)}) == 4
    ramps = {kind: ramp for kind, ramp in COLOR.ramps.items() if kind != Kind.S}
    monkeypatch.setattr("debubble.view.colors.COLOR", Palette("color", ramps, COLOR.stripes))
    monkeypatch.delitem(__import__("debubble.view.colors", fromlist=["_XTERM"])._XTERM, Kind.S)
    timeline = CASES["vocabulary"]()
    for ending in ("png", "svg", "html"):
        save([timeline], tmp_path / f"x.{ending}", palette=Palette("own", ramps, COLOR.stripes))
    assert str(timeline)


def test_grey_has_every_kind():
    grey = PALETTES["grey"]
    for kind in Kind:
        color = grey.shade(kind)
        assert len(set(re.findall("[0-9a-f]{2}", color))) == 1, kind
    assert np.all([grey.shade(kind) for kind in COMPUTE_KINDS])
