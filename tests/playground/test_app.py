"""The playground's answers: right numbers, clear refusals, strict headers."""

from __future__ import annotations

import json
import sys

import pytest

import debubble as db
from debubble.interchange.chrome_trace import trace_text
from debubble.interchange.schedule_json import to_json
from debubble.playground import limits
from debubble.playground.limits import Cache
from debubble.schedules import registry

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
    from debubble.playground.catalogue import catalogue

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


def test_numbers_are_those_of_the_library(ask):
    data = ask("/api/simulate", STATE).json()
    costs = db.Costs.per_rank(F=1, I=1, W=1, p2p=0.1)
    wanted = db.compare(["1f1b", "zb-h1"], ranks=4, microbatches=8, costs=costs)
    assert data["table"] == json.loads(json.dumps(wanted.to_dict()))
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
