"""Searches of the server: plans and faster orders, with progress, an early end and limits."""

from __future__ import annotations

import json
import time
from importlib import resources

import pytest

import debubble as db
from debubble.planner.answer.plan import plan_for
from debubble.planner.frameworks.table import ANY, FRAMEWORKS
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.files import shipped_models
from debubble.playground import limits, plans
from debubble.playground.searches import Searches
from debubble.view.plan_page import plan_view

QUESTION = {
    "model": "llama-3.2-1b", "gpu": "h100", "gpus": 4, "batch": 8, "sequence": 2048,
    "tp": 1, "pp": 2, "schedule": "zb-h1", "framework": "any",
}  # fmt: skip
LONG = {"model": "llama-3.1-70b", "gpu": "h100", "gpus": 512, "batch": 1024, "sequence": 8192}
STATE = {
    "schedules": [{"name": "1f1b"}], "ranks": 4, "microbatches": 8, "chunks": 2, "memory": 3.0,
    "costs": {"basis": "rank", "F": 10.0, "I": 12.0, "W": 8.0},
}  # fmt: skip


def started(ask, path, data):
    answer = ask(path, data)
    assert answer.is_success, answer.text
    return answer.json()["search"]


def look(ask, name, stop=False):
    return ask("/api/search", {"search": name, "stop": stop})


def ended(ask, name, stop=False):
    """The last look at a search."""
    while True:
        answer = look(ask, name, stop)
        if not answer.is_success or answer.json()["done"]:
            return answer
        time.sleep(0.02)


def found(ask, data, path="/api/plan"):
    return ended(ask, started(ask, path, data)).json()["answer"]


def refused(ask, data, path="/api/plan"):
    """Message and field of a refusal, at once or by the search."""
    answer = ask(path, data)
    if answer.is_success:
        answer = ended(ask, answer.json()["search"])
    assert answer.status_code == 422
    return answer.json()["message"], answer.json()["field"]


def test_what_can_be_asked_for_is_what_there_is(ask):
    lists = ask("/api/planner").json()
    assert lists["models"] == list(shipped_models())
    assert [name for name, _ in lists["gpus"]] == list(GPUS)
    assert lists["frameworks"] == [*FRAMEWORKS, ANY]


@pytest.mark.slow
def test_plans_are_those_of_the_library(ask):
    answer = found(ask, QUESTION)
    options = {("seq" if name == "sequence" else name): value for name, value in QUESTION.items()}
    options |= {"schedule": ("zb-h1",), "why": [], "top": plans.TOP}
    wanted = json.loads(json.dumps(plan_view(plan_for(options))))
    opened = [plan.pop("open") for plan in answer["plans"]]
    # The page does not look for plans on more GPUs.
    assert answer.pop("notes") == [one for one in wanted.pop("notes") if "more GPUs" not in one]
    assert answer == wanted
    assert [one["name"] for one in opened] == [plan["schedule"] for plan in answer["plans"]]


@pytest.mark.slow
def test_every_plan_goes_into_the_comparison(ask):
    held = {"schedule": "zb-v", "microbatch_size": 1, "recompute": "none"}
    answer = found(ask, QUESTION | held)
    assert any("file" in plan["open"] for plan in answer["plans"])
    for plan in answer["plans"]:
        opened = plan["open"]
        wanted = {"file": opened["file"]} if "file" in opened else {"name": opened["name"]}
        state = {"schedules": [wanted], "costs": {"file": opened["costs"]}}
        shown = ask("/api/simulate", state | opened["fields"]).json()
        (timeline,) = shown["timelines"]["timelines"]
        (own,) = plan["timeline"]["timelines"]
        assert timeline["makespan"] == pytest.approx(own["makespan"], rel=1e-5)


@pytest.mark.slow
def test_a_model_may_come_as_a_file(ask):
    folder = resources.files("debubble.planner.model") / "shipped"
    text = (folder / "llama-3.2-1b.json").read_text(encoding="utf-8")
    own = QUESTION | {"file": {"name": "config.json", "text": text}}
    del own["model"]
    of_file, of_name = found(ask, own), found(ask, QUESTION)
    assert of_file["plans"][0]["step_time"] == of_name["plans"][0]["step_time"]


def test_without_a_plan_the_answer_says_so(ask):
    answer = found(ask, QUESTION | {"memory": "2GB"})
    assert "no plan fits into 2.0 GB" in answer["nothing"]
    assert not any(plan["fits"] or plan["recommended"] for plan in answer["plans"])


@pytest.mark.slow
def test_a_search_that_is_cancelled_keeps_the_best(ask):
    name = started(ask, "/api/plan", LONG)
    while not (now := look(ask, name).json()).get("view"):
        time.sleep(0.02)
    (best,) = now["view"]["plans"]
    assert best["step_time"] == now["best"]
    answer = ended(ask, name, stop=True).json()["answer"]
    assert answer["stopped"]
    assert answer["plans"][0]["step_time"] <= best["step_time"]
    assert look(ask, name).status_code == 410


@pytest.mark.parametrize("limit", ["SEARCH_SECONDS", "UNHEARD"])
def test_a_search_ends_when_its_time_is_over_or_nobody_asks(ask, monkeypatch, limit):
    monkeypatch.setattr(limits, limit, -1.0)
    answer = found(ask, LONG)
    assert answer["stopped"]


@pytest.mark.slow
def test_one_search_at_a_time(ask):
    name = started(ask, "/api/plan", LONG)
    second = ask("/api/plan", QUESTION)
    assert second.status_code == 429
    assert "cancel it, or wait" in second.json()["message"]
    # Other requests are answered all the same.
    assert ask("/api/simulate", STATE).is_success
    ended(ask, name, stop=True)
    assert found(ask, QUESTION)["plans"]


def test_few_searches_of_all_clients_run_at_a_time():
    searches = Searches()

    def work(running):
        while not running.over():
            time.sleep(0.005)
        return b"{}"

    names = [searches.start(f"10.0.0.{k}", work) for k in range(limits.SEARCHES)]
    with pytest.raises(limits.RefusedError, match="other searches are running"):
        searches.start("10.0.0.99", work)
    for name in names:
        while searches.poll(name, stop=True)[1] is None:
            time.sleep(0.005)
    name = searches.start("10.0.0.99", work)
    while searches.poll(name, stop=True)[1] is None:
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("change", "message", "field"),
    [
        ({"model": "secret.json"}, "the nearest", "model"),
        ({"model": "/etc/passwd"}, "give a text without slashes", "model"),
        ({"gpu": "h10"}, "did you mean 'h100'", "gpu"),
        ({"gpu": "own.yaml"}, "gpu 'own.yaml'", "gpu"),
        ({"gpus": 0}, "gpus is 0", "gpus"),
        ({"gpus": 10**6}, "gpus is 1000000; give a number less than or equal to 65536", "gpus"),
        ({"batch": 1.5}, "give a whole number from 1 to 65,536", "batch"),
        ({"tp": 3}, "the nearest that works is tp 2", ""),
        ({"memory": "lots"}, "memory is 'lots'", ""),
        ({"framework": "mega"}, "megatron", ""),
        ({"framework": None}, "no framework runs this", ""),
        ({"schedule": "dualpipe"}, "is not for plans", ""),
        ({"file": {"name": "config.json", "text": "[]"}}, "a model is a mapping", ""),
    ],
)
def test_what_no_plan_can_meet_is_refused(ask, change, message, field):
    text, about = refused(ask, QUESTION | change)
    assert message in text
    assert about == field


def test_models_without_end_are_refused(ask):
    text = (
        "{hidden: 8, vocabulary: 8, layers: 10000, mlp: {width: 8}, "
        "attention: {heads: 1, kv_heads: 1, head_dim: 8}}"
    )
    own = QUESTION | {"file": {"name": "model.yaml", "text": text}}
    assert "10,000 layers; the limit is 512" in refused(ask, own)[0]


def test_orders_with_too_many_actions_are_left_out_and_counted(ask, monkeypatch):
    monkeypatch.setattr(limits, "MAX_ACTIONS", 10)
    assert any("too many here" in why for why in found(ask, QUESTION)["left_out"])
    monkeypatch.setattr(limits, "MAX_ACTIONS", 5)
    assert "use a smaller batch" in refused(ask, QUESTION)[0]


def test_the_example_is_the_answer_to_the_question_of_the_form(ask):
    start = ask("/api/planner").json()["start"]
    example = ask("/api/example-plan").json()
    best = example["plans"][0]
    fixed = {"tp": best["degrees"].get("tp", 1)} | {
        name: best[name] for name in ("schedule", "microbatch_size", "recompute", "zero")
    }
    answer = found(ask, start | fixed | best["degrees"])
    again = answer["plans"][0]
    hint = "run python -m debubble.playground.examples"
    assert set(answer) == set(example), hint
    assert set(again) == set(best), hint
    assert again["step_time"] == pytest.approx(best["step_time"], rel=0.02), hint


def test_the_example_of_a_trace_is_that_of_the_command_line(ask):
    report = ask("/api/example-report").json()
    assert report["title"].startswith("Stage 2 on rank 2 is slow: ")
    assert report["findings"][0]["cause"] == "slow-stage"


def test_an_optimal_schedule_is_named_and_nothing_is_added(ask):
    both = STATE | {"schedules": [{"name": "1f1b"}, {"name": "zb-v"}], "memory": 4.0}
    answer = found(ask, both | {"costs": {}}, "/api/optimize")
    assert answer == {"headline": "zb-v is already optimal (25.5, proven)", "file": None}


def test_a_faster_order_is_found(ask):
    name = started(ask, "/api/optimize", STATE)
    costs = db.Costs.per_rank(F=10, I=12, W=8)
    plain = db.simulate(db.make("1f1b", ranks=4, microbatches=8), costs).makespan
    # The first ones that are found fit into less memory than 1f1b needs, and may be slower.
    while look(ask, name).json().get("best", plain) >= plain:
        time.sleep(0.02)
    answer = ended(ask, name, stop=True).json()["answer"]
    both = STATE | {"schedules": [{"name": "1f1b"}, {"file": answer["file"]}]}
    rows = {row["name"]: row for row in ask("/api/simulate", both).json()["table"]["rows"]}
    (order,) = [row for label, row in rows.items() if label != "1f1b"]
    assert order["makespan"] < plain
    assert order["peak_activation"] <= 3


@pytest.mark.parametrize(
    ("change", "message", "field"),
    [
        ({"iterations": 2}, "leave iterations empty", "iterations"),
        ({"recompute": "full"}, "recompute is for published schedules", "recompute"),
        ({"microbatches": 60000}, "use fewer microbatches", "microbatches"),
        ({"memory": 0.01}, "memory", ""),
    ],
)
def test_what_no_search_knows_is_refused(ask, change, message, field):
    text, about = refused(ask, STATE | change, "/api/optimize")
    assert message in text
    assert about == field
