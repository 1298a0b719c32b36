"""The playground's answers: right numbers, clear refusals, strict headers."""

from __future__ import annotations

import json
import sys

import pytest

import debubble as db
from debubble.core.costs import COST_FIELDS
from debubble.engine.modes import P2P_MODES
from debubble.interchange.schedule_json import to_json
from debubble.interchange.trace_events import trace_text
from debubble.lowering.chain import LOWERINGS
from debubble.playground import limits
from debubble.playground.app import Cache
from debubble.schedules import registry
from tests.pairs import each_family_and
from tests.patience import patience

STATE = {
    "schedules": [{"name": "1f1b"}, {"name": "zb-h1"}],
    "ranks": 4,
    "microbatches": 8,
    "costs": {"basis": "rank", "F": 1.0, "I": 1.0, "W": 1.0, "p2p": 0.1},
}


def test_every_registered_schedule_is_offered(ask):
    listed = ask("/api/schedules").json()["schedules"]
    assert [entry["name"] for entry in listed] == sorted(e.name for e in registry.schedules())
    for entry in listed:
        assert entry["source"]
        assert entry["about"]


def test_a_schedule_that_a_user_registers_is_offered(ask):
    from debubble.playground.controls import catalogue

    @db.register("tried", title="T", year=2026, source="me", placement=db.Placement.loop, chunks=1)
    def tried(*, ranks, microbatches, depth: int = 2):
        """Tried."""

    try:
        (entry,) = [entry for entry in catalogue() if entry["name"] == "tried"]
        assert entry["options"] == [
            {"name": "depth", "kind": "whole", "choices": [], "default": 2, "text": ""}
        ]
    finally:
        registry._ENTRIES.pop("tried")


def test_controls_are_those_of_the_lists(ask):
    lists = ask("/api/schedules").json()
    assert set(lists["modes"]) == set(P2P_MODES)
    offered = [row.name for row in LOWERINGS if row.on_page]
    assert [choice["name"] for choice in lists["choices"]] == offered
    for control in lists["costs"]:
        assert control["hint"] == COST_FIELDS[control["name"]].text
    for choice in lists["choices"]:
        values = [value for value, _ in choice["values"]]
        # A parameter of another lowering always has a value.
        assert bool(values[0]) == bool(choice["needs"])
        assert ask("/api/simulate", STATE | {choice["name"]: values[-1]}).is_success


@pytest.mark.parametrize(
    "name", [name for name, spec in COST_FIELDS.items() if spec.shape not in ("part", "sharing")]
)
def test_every_cost_that_is_a_number_is_taken(ask, name):
    answer = ask("/api/simulate", STATE | {"costs": {"basis": "rank", name: 0.5}})
    assert answer.is_success, answer.text


def test_numbers_are_those_of_the_library(ask):
    data = ask("/api/simulate", STATE).json()
    costs = db.Costs.per_rank(F=1, I=1, W=1, p2p=0.1)
    wanted = db.compare(["1f1b", "zb-h1"], ranks=4, microbatches=8, costs=costs)
    shown = data["table"].pop("columns")
    assert data["table"].pop("recorded") == []
    assert data["table"] == json.loads(json.dumps(wanted.to_dict()))
    # Idle time by cause comes after the bubble ratio, which is its sum.
    titles = [column["title"] for column in shown]
    at = titles.index("bubble ratio") + 1
    causes = [shown.pop(at) for _ in range(titles.index("overhead") - at)]
    assert [column["title"] for column in causes] == [
        "fill", "drain", "waits for data", "waits for p2p",
    ]  # fmt: skip
    for place, row in enumerate(wanted.rows):
        shares = [float(column["cells"][place].removesuffix(" %")) for column in causes]
        assert sum(shares) == pytest.approx(100 * row.bubble_ratio, abs=0.02)
    assert [(column["title"], tuple(column["cells"])) for column in shown] == [
        (column.title, column.cells) for column in wanted.columns()
    ]
    assert data["headline"] == wanted.headline
    # In the order of the ranking, so that the winner is on top.
    assert (data["labels"], data["places"]) == (["zb-h1", "1f1b"], [1, 0])
    assert [t["makespan"] for t in data["timelines"]["timelines"]] == [
        db.simulate(db.make(name, ranks=4, microbatches=8), costs).makespan
        for name in ("zb-h1", "1f1b")
    ]
    assert data["cards"][0]["closed_forms"]
    assert data["problems"] == []


@pytest.mark.parametrize("name", [entry.name for entry in registry.schedules()])
def test_every_schedule_runs_or_says_what_would(ask, name):
    data = ask("/api/simulate", STATE | {"schedules": [{"name": name}], "microbatches": 7}).json()
    for problem in data["problems"]:
        assert problem["message"]
        if problem["nearest"] is not None:
            changed = STATE | {
                "schedules": [{"name": name}],
                "microbatches": 7,
                problem["field"]: problem["nearest"],
            }
            again = ask("/api/simulate", changed).json()
            assert problem["message"] not in [p["message"] for p in again["problems"]]
    assert data["cards"] or data["problems"]


def test_what_does_not_fit_is_explained_beside_its_field(ask):
    wanted = {"name": "interleaved-1f1b", "options": {"group_size": 3}}
    data = ask(
        "/api/simulate", STATE | {"schedules": [wanted, {"name": "1f1b"}], "chunks": 2}
    ).json()
    (problem,) = data["problems"]
    assert problem["index"] == 0
    assert problem["field"] in ("group_size", "microbatches", "ranks")
    assert problem["nearest"]
    assert data["places"] == [1]


REFUSED = [
    ({"ranks": 0}, "ranks", "greater than or equal to 1"),
    ({"ranks": 100_000}, "ranks", "less than or equal to"),
    ({"microbatches": 1.5}, "microbatches", "is 1.5; give a whole number from 1 to 65,536"),
    ({"microbatches": "8"}, "microbatches", "is '8'; give a whole number from 1 to 65,536"),
    ({"iterations": 0}, "iterations", "greater than or equal to 1"),
    ({"sharding": "zero"}, "sharding", "is 'zero'; give ddp or fsdp"),
    ({"mode": "both"}, "mode", "overlapped"),
    ({"memory": -1.0}, "memory", "greater than 0"),
    ({"costs": {"F": -1.0}}, "F", "greater than or equal to 0"),
    ({"costs": {"F": 1e300}}, "F", "less than or equal to"),
    ({"costs": {"G": 1.0}}, "costs", "unknown key 'G'"),
    ({"schedules": []}, "schedules", "schedules has 0 entries; give at least 1"),
    ({"schedules": [{"name": "1f1b"}] * 30}, "schedules", "at most"),
    ({"more": 1}, "", "unknown key 'more'; leave it out"),
    ({"ranks": 64, "microbatches": 60_000}, "microbatches", "the limit is 1,500,000"),
]


@pytest.mark.parametrize(("change", "field", "message"), REFUSED)
def test_bad_values_are_422_with_their_field(ask, change, field, message):
    answer = ask("/api/simulate", STATE | change)
    data = answer.json()
    assert answer.status_code == 422
    assert (data["field"], message in data["message"]) == (field, True), data


def test_too_many_actions_come_with_a_number_that_works(ask):
    state = STATE | {"ranks": 64, "microbatches": 60_000}
    most = ask("/api/simulate", state).json()["nearest"]
    assert 64 * most * 3 * 2 <= limits.MAX_ACTIONS < 64 * (most + 2) * 3 * 2


@pytest.mark.parametrize("name", ["x.csv", "x.py:f", "../../etc/passwd", "/etc/passwd", "a\x00b"])
def test_a_name_is_never_a_path(ask, name):
    answer = ask("/api/simulate", STATE | {"schedules": [{"name": name}]})
    text = answer.text
    assert "root:" not in text
    assert answer.status_code == 422 or "unknown schedule" in text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"{}"])
def test_bodies_that_are_no_state_are_422(ask, body):
    assert ask("/api/simulate", body).status_code == 422


def test_large_bodies_are_413(ask):
    assert ask("/api/simulate", b" " * (limits.MAX_BODY + 1)).status_code == 413


def test_a_body_that_lies_about_its_length_is_413(ask):
    async def chunks():
        for _ in range(limits.MAX_BODY // 65536 + 2):
            yield b" " * 65536

    import asyncio

    import httpx

    from debubble.playground.app import make_app

    async def send():
        transport = httpx.ASGITransport(app=make_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"content-type": "application/json"}
            return await client.post("/api/simulate", content=chunks(), headers=headers)

    assert asyncio.run(send()).status_code == 413


def test_forms_of_other_pages_are_refused(ask):
    assert ask("/api/simulate", STATE, headers={"origin": "http://evil.test"}).status_code == 403
    assert ask("/api/simulate", STATE, headers={"origin": "null"}).status_code == 403
    assert ask("/api/simulate", STATE, headers={"origin": "http://localhost"}).status_code == 200
    plain = ask("/api/simulate", STATE, headers={"content-type": "text/plain"})
    assert plain.status_code == 415


@pytest.mark.parametrize("host", ["evil.test", "evil.test:80", "127.0.0.1.evil.test", ""])
def test_other_names_of_this_machine_are_refused(ask, host):
    assert ask("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:1", "[::1]:8642"])
def test_its_own_name_and_addresses_are_served(ask, host):
    assert ask("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/main.js", "/timeline.js", "/api/schedules", "/no"])
def test_headers_are_strict(ask, path):
    headers = ask(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/../state.py", "/%2e%2e/app.py", "/assets/index.html", "/api"])
def test_nothing_else_is_served(ask, path):
    assert ask(path).status_code == 404


def test_the_page_asks_for_nothing_from_elsewhere(ask):
    for path in ("/", "/playground.css", "/main.js"):
        text = ask(path).text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text


def uploaded(ask, name, text):
    return ask("/api/upload", {"name": name, "text": text})


def test_a_cost_file_sets_costs_and_sizes(ask):
    text = "ranks: 8\nmicrobatches: 24\nbasis: rank\ntime_unit: ms\ntimes: {F: 2, I: 2, W: 1}\n"
    found = uploaded(ask, "costs.yaml", text + "memory: {limit: 9}\n").json()
    assert found["kind"] == "costs"
    assert found["fields"] == {"ranks": 8, "microbatches": 24, "memory": 9}
    state = STATE | {"costs": {"file": found["costs"]}, "ranks": 8, "microbatches": 24}
    data = ask("/api/simulate", state | {"schedules": [{"name": "1f1b"}]}).json()
    assert ["times in", "ms"] in data["costs"]
    assert ["F", "2"] in data["costs"]
    costs = db.Costs.per_rank(F=2, I=2, W=1)
    wanted = db.simulate(db.make("1f1b", ranks=8, microbatches=24), costs).makespan
    assert data["timelines"]["timelines"][0]["makespan"] == wanted
    assert data["timelines"]["time_unit"] == "ms"


def test_the_memory_limit_of_a_cost_file_counts_unless_the_request_says_another(ask):
    text = "basis: rank\ntimes: {F: 1, B: 2}\nmemory: {limit: 3}\n"
    found = uploaded(ask, "costs.yaml", text).json()
    state = STATE | {"schedules": [{"name": "1f1b"}], "costs": {"file": found["costs"]}}

    def fits(**more):
        return ask("/api/simulate", state | more).json()["table"]["rows"][0]["fits"]

    assert [fits(), fits(memory=4), fits(memory=None)] == [False, True, True]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_a_schedule_file_is_compared(ask, ending):
    schedule = db.make("zb-h1", ranks=4, microbatches=8)
    text = (
        to_json(schedule) if ending == "json" else "\n".join(",".join(r) for r in schedule.rows())
    )
    found = uploaded(ask, f"mine.{ending}", text).json()
    assert (found["kind"], found["problems"]) == ("schedule", [])
    data = ask("/api/simulate", STATE | {"schedules": [{"file": found["schedule"]}]}).json()
    costs = db.Costs.per_rank(F=1, I=1, W=1, p2p=0.1)
    assert data["cards"][0]["makespan"] == db.simulate(schedule, costs).makespan


def test_a_bad_order_is_read_and_its_problems_are_told(ask):
    found = uploaded(ask, "bad.csv", "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n").json()
    assert "0B1 is missing" in found["problems"][0]
    data = ask("/api/simulate", STATE | {"schedules": [{"file": found["schedule"]}]}).json()
    assert "0B1 is missing" in data["problems"][0]["message"]
    assert data["problems"][0]["message"].startswith("bad.csv: its order is wrong: ")


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "dualpipe-v"])
def test_a_trace_gives_its_order_and_times_back(ask, name):
    costs = db.Costs(F=1, I=1.25, W=0.5, O=3)
    timeline = db.simulate(db.make(name, ranks=4, microbatches=8), costs)
    found = uploaded(ask, "run.trace.json", "".join(trace_text(timeline))).json()
    assert found["kind"] == "trace"
    state = STATE | {
        "schedules": [{"file": found["schedule"]}],
        "costs": {"file": found["costs"]},
    }
    data = ask("/api/simulate", state).json()
    assert data["problems"] == []
    assert data["cards"][0]["makespan"] == pytest.approx(timeline.makespan)
    assert data["cards"][0]["actions"] == len(timeline.schedule)


BAD_FILES = [
    ("x.txt", "", "is no file to read"),
    ("x.csv", "", "x.csv: empty"),
    ("x.csv", "0F0,hello", "is not an action"),
    ("x.json", "{", "not JSON"),
    ("x.json", "{}", "not a schedule file"),
    ("x.yaml", "times: {F: -1}", "F"),
    ("x.json", '{"traceEvents": []}', "no event is called like an action"),
    ("x.json", '{"traceEvents": [{"ph": "X", "name": "0F0", "pid": 7, "ts": 0}]}', "go from 0"),
    ("x.json", '{"traceEvents": [{"ph": "X", "name": "0F0", "pid": "a"}]}', "needs numbers"),
    ("x.json", '{"traceEvents": 3}', "no list of events"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES)
def test_bad_files_are_refused_with_a_reason(ask, name, text, message):
    answer = uploaded(ask, name, text)
    assert answer.status_code == 422
    assert message in answer.json()["message"]


def test_a_small_file_cannot_claim_a_large_machine(ask):
    head = '{"format": "debubble-schedule", "version": 1, "ranks": 4000, "microbatches": 1,'
    table = json.dumps([[0] * 1])
    programs = json.dumps([["0F0", "0B0"]] + [[]] * 3999)
    text = f'{head} "placement": {{"table": {table}}}, "programs": {programs}}}'
    answer = uploaded(ask, "wide.json", text)
    assert answer.status_code == 422
    assert "4,000 ranks" in answer.json()["message"]


EXPORTS = [
    ("torch-csv", "1f1b.csv", b"0F0"),
    ("torch-csv-comms", "1f1b-with-transfers.csv", b"SEND_F"),
    ("json", "1f1b.json", b"debubble-schedule"),
    ("chrome-trace", "1f1b.trace.json", b"traceEvents"),
    ("html", "1f1b.html", b"<!doctype html>"),
]


@pytest.mark.parametrize(("form", "name", "content"), EXPORTS)
def test_files_are_made(ask, form, name, content):
    answer = ask("/api/export", {"state": STATE, "index": 0, "format": form})
    assert answer.status_code == 200
    assert content in answer.content
    assert f'filename="{name}"' in answer.headers["content-disposition"]


def test_an_export_that_cannot_be_made_says_why(ask):
    answer = ask("/api/export", {"state": STATE, "index": 5, "format": "json"})
    assert (answer.status_code, answer.json()["field"]) == (422, "index")
    wrong = STATE | {"schedules": [{"name": "dualpipe"}], "ranks": 3}
    assert ask("/api/export", {"state": wrong, "format": "json"}).status_code == 422


def test_the_same_question_is_answered_from_memory(ask):
    state = STATE | {"microbatches": 21}
    first, second = ask("/api/simulate", state), ask("/api/simulate", state)
    assert first.content == second.content


def test_a_cache_forgets_what_was_not_used_for_longest():
    cache = Cache(limit=40)
    for key in b"abcd":
        cache.put(bytes([key]), b"x" * 10)
    assert cache.get(b"a")
    cache.put(b"e", b"x" * 10)
    assert cache.get(b"b") is None
    assert cache.get(b"a")
    assert cache.size == 40
    cache.put(b"f", b"x" * 11)
    assert cache.get(b"f") is None


def test_the_command_says_what_is_missing(monkeypatch):
    from typer.testing import CliRunner

    from debubble.cli.app import app

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 2
    assert "pip install 'debubble[serve]'" in result.stderr


def test_a_port_in_use_is_refused():
    import socket

    from typer.testing import CliRunner

    from debubble.cli.app import app

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "--port", port, "--no-browser"])
    assert result.exit_code == 2
    assert "--port 0 takes a free port" in result.stderr


@pytest.mark.slow
def test_slices_count_before_anything_is_made(ask):
    sliced = {"name": "seq1f1b", "options": {"slices": 1024}}
    state = STATE | {"schedules": [sliced], "ranks": 8, "microbatches": 256}
    answer = ask("/api/simulate", state)
    assert answer.status_code == 422
    data = answer.json()
    assert "the limit is 1,500,000" in data["message"]
    assert ask("/api/simulate", state | {"microbatches": data["nearest"]}).status_code == 200
    too_many = {"name": "seq1f1b", "options": {"slices": 1 << 20}}
    problems = ask("/api/simulate", STATE | {"schedules": [too_many]}).json()["problems"]
    assert "slices of seq1f1b is 1048576; give 1 to 1,024" in problems[0]["message"]


MULTIPLIED = [
    {"iterations": 250}, {"iterations": 250, "recompute": "full"},
    {"iterations": 250, "sharding": "fsdp", "chunks": 8},
]  # fmt: skip


@pytest.mark.parametrize("change", MULTIPLIED)
def test_whatever_multiplies_actions_counts(ask, change):
    state = STATE | {"ranks": 64, "microbatches": 512} | change
    assert "the limit is 1,500,000" in ask("/api/simulate", state).json()["message"]


@each_family_and(
    "change", [{}, {"iterations": 3}, {"recompute": "full"}, {"sharding": "ddp"},
               {"sharding": "fsdp"}]
)  # fmt: skip
def test_no_schedule_has_more_actions_than_were_counted(entry, change):
    from debubble.core.errors import DebubbleError
    from debubble.playground.state import PageState, Wanted
    from debubble.playground.work import _compared, _items

    state = PageState(schedules=[Wanted(name=entry.name)], ranks=4, microbatches=8, **change)
    file = state.read_costs()
    try:
        items, most = _items(state.schedules[0], state, file.costs)
    except DebubbleError:
        pytest.skip("does not run in this size")
    result, _ = _compared(items, state, file)
    assert result.rows
    for row in result.rows:
        assert len(row.schedule) <= most


def test_internal_errors_are_json_with_a_message(ask, monkeypatch, caplog):
    from debubble.playground import work

    def broken(state):
        raise AssertionError("what nobody thought of")

    monkeypatch.setattr(work, "simulate", broken)
    answer = ask("/api/simulate", STATE | {"microbatches": 23})
    assert answer.status_code == 500
    assert answer.json()["message"].startswith("internal error: AssertionError; this is a bug")
    assert "what nobody thought of" in caplog.text


def test_addresses_that_do_not_exist_are_answered_as_json(ask):
    answer = ask("/api/nothing")
    assert (answer.status_code, answer.json()["message"]) == (404, "/api/nothing: Not Found")
    assert ask("/api/simulate").json()["message"].endswith("Method Not Allowed")


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "null"])
def test_origins_that_are_no_address_are_refused(ask, origin):
    assert ask("/", headers={"origin": origin}).status_code == 403


def test_the_content_type_may_be_in_capitals(ask):
    for kind in ("APPLICATION/JSON", "Application/Json; charset=utf-8"):
        assert ask("/api/simulate", STATE, headers={"content-type": kind}).status_code == 200


def test_a_client_that_goes_away_leaves_no_traceback(caplog):
    import asyncio

    from debubble.playground.app import make_app

    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/simulate", "raw_path": b"/api/simulate",
        "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "server": ("localhost", 80), "client": ("localhost", 1),
    }  # fmt: skip
    asyncio.run(make_app()(scope, receive, send))
    assert sent[0]["status"] == 499
    assert caplog.text == ""


def test_a_body_that_does_not_arrive_is_408(monkeypatch):
    import asyncio

    from debubble.playground.app import make_app

    monkeypatch.setattr(limits, "READING", 0.2)

    async def bounded():
        app = make_app()
        sent = []

        async def receive():
            await asyncio.sleep(0.05)
            return {"type": "http.request", "body": b" ", "more_body": True}

        async def note(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "path": "/api/simulate", "raw_path": b"/",
            "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
            "headers": headers, "server": ("localhost", 80), "client": ("localhost", 1),
        }  # fmt: skip
        await app(scope, receive, note)
        return sent

    sent = asyncio.run(bounded())
    assert sent[0]["status"] == 408
    assert b"more than 0.2 s" in sent[1]["body"]
    assert (b"connection", b"close") in sent[0]["headers"]


def test_connections_that_send_nothing_are_closed(monkeypatch):
    import socket
    import threading
    import time

    import uvicorn

    from debubble.playground import connection
    from debubble.playground.app import make_app

    monkeypatch.setattr(connection, "READING", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        make_app(), http=connection.PromptProtocol, log_level="error", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        for opening in (b"", b"GET / HTTP/1.1\r\nHost: local"):
            with socket.create_connection(listener.getsockname(), timeout=patience(20)) as client:
                client.sendall(opening)
                assert client.recv(100) == b""
        with socket.create_connection(listener.getsockname(), timeout=patience(20)) as client:
            client.sendall(b"GET /dom.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        server.should_exit = True
        thread.join(timeout=patience(20))


def test_requests_share_the_memory_there_is(monkeypatch, ask):
    monkeypatch.setattr(limits, "MAX_HELD", 10)
    assert ask("/api/simulate", STATE).status_code == 503
    monkeypatch.undo()
    assert ask("/api/simulate", STATE).status_code == 200


def test_a_stage_out_of_all_proportion_is_refused(ask):
    events = [{"ph": "X", "name": "1048575F0", "pid": 0, "ts": 0, "dur": 1}]
    answer = uploaded(ask, "x.json", json.dumps({"traceEvents": events}))
    assert answer.status_code == 422
    assert "1,048,576 stages on 1 ranks" in answer.json()["message"]


@pytest.mark.parametrize(("name", "kind"), [("examples/zeropipe.yaml", "costs")])
def test_examples_are_read(ask, name, kind):
    from pathlib import Path

    text = Path(__file__).parents[2].joinpath(name).read_text()
    assert uploaded(ask, Path(name).name, text).json()["kind"] == kind


def run_text(seconds=1e-3):
    from debubble.interchange.trace_events import run_trace

    schedule = db.make("zb-v", ranks=4, microbatches=8)
    predicted = db.simulate(schedule, db.Costs(F=seconds, I=seconds, W=seconds))
    measured = (predicted.start * 1.5, predicted.start * 1.5 + predicted.duration)
    times = {"predicted": (predicted.start, predicted.end), "measured": measured}
    return "".join(run_trace(schedule, times)), predicted.makespan, float(measured[1].max())


def test_the_trace_of_a_run_shows_what_was_predicted_above_what_was_measured(ask):
    text, predicted, measured = run_text()
    found = uploaded(ask, "run.json", text).json()
    assert found["groups"] == ["zb-v, predicted", "zb-v, measured"]
    assert found["fields"] == {"ranks": 4, "microbatches": 8}
    state = STATE | {"schedules": [{"file": found["schedule"]}], "costs": {"file": found["costs"]}}
    data = ask("/api/simulate", state).json()
    assert data["labels"] == found["groups"]
    assert (data["places"], data["parts"]) == ([0, 0], [0, 1])
    spans = [timeline["makespan"] for timeline in data["timelines"]["timelines"]]
    assert spans == pytest.approx([1e3 * predicted, 1e3 * measured], rel=1e-5)
    assert data["headline"].startswith("zb-v took ")
    # What was measured is no choice between schedules.
    assert data["table"]["best"] is None
    assert data["table"]["recorded"] == data["labels"]
    for part, name in enumerate(("zb-v-predicted", "zb-v-measured")):
        wanted = {"state": state, "part": part, "format": "chrome-trace"}
        answer = ask("/api/export", wanted)
        assert f'filename="{name}.trace.json"' in answer.headers["content-disposition"]
    # Others are ranked against what was measured, not against the prediction.
    both = state | {"schedules": [{"file": found["schedule"]}, {"name": "1f1b"}]}
    data = ask("/api/simulate", both).json()
    assert data["labels"][:2] == found["groups"]
    assert not data["headline"].startswith("zb-v, predicted")


def test_names_of_files_tell_schedules_apart(ask):
    wanted = {"name": "interleaved-1f1b", "chunks": 4}
    state = STATE | {"schedules": [{"name": "interleaved-1f1b"}, wanted], "chunks": 2}
    data = ask("/api/simulate", state).json()
    assert set(data["labels"]) == {"interleaved-1f1b", "interleaved-1f1b (chunks=4)"}
    answer = ask("/api/export", {"state": state, "index": 1, "format": "torch-csv"})
    name = "interleaved-1f1b-chunks-4.csv"
    assert f'filename="{name}"' in answer.headers["content-disposition"]


def test_every_option_says_what_it_does():
    from debubble.playground.controls import catalogue

    for entry in catalogue():
        for option in entry["options"]:
            assert option["text"], (entry["name"], option["name"])
            assert option["kind"] in ("choice", "truth", "whole", "number")
        for block in entry["about"]:
            assert "``" not in block["text"]
            assert "::" not in block["text"]


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_times_of_a_trace_are_those_of_its_ranks(ask, name):
    times = {"F": [1.0, 1.0, 1.5, 1.0], "I": 1.0, "W": 0.5}
    schedule = db.make(name, ranks=4, microbatches=8)
    timeline = db.simulate(schedule, db.Costs.per_rank(**times))
    costs = uploaded(ask, "run.json", "".join(trace_text(timeline))).json()["costs"]
    found = json.loads(costs["text"])
    assert found["basis"] == "rank"
    assert found["times"]["F"] == pytest.approx(times["F"], rel=1e-4)
    # So schedules with any number of stages run the same model at them.
    state = STATE | {"schedules": [{"name": "1f1b"}, {"name": "zb-v"}], "costs": {"file": costs}}
    answer = ask("/api/simulate", state).json()
    assert answer["problems"] == []
    assert "is fastest" in answer["headline"]
