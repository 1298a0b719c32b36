"""``debubble simulate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db

Run = Callable[..., Any]

KEYS = {
    "schedule", "ranks", "chunks", "stages", "microbatches", "makespan", "ideal", "stage_time",
    "busy", "bubble_ratio", "stage_bubble_rate", "overhead", "peak_activation", "conventions",
}  # fmt: skip


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.yaml"
    path.write_text(
        "name: A model\nsource: A paper\nranks: 4\nmicrobatches: 8\nchunks: 2\nbasis: rank\n"
        "time_unit: ms\ntimes: {F: 2, I: 2, W: 2}\n"
        "memory: {unit: GB, activation: 3, limit: 10}\n"
    )
    return path


def test_json_has_every_number_and_its_convention(run: Run) -> None:
    data = run("simulate", "1f1b", "-p", 4, "-m", 8, "--times", "F=10,B=18", "--json").data
    assert data.keys() >= KEYS
    assert (data["schedule"], data["ranks"], data["stages"], data["microbatches"]) == (
        "1f1b", 4, 4, 8,
    )  # fmt: skip
    assert data["makespan"] == 308
    assert data["busy"] == [224.0] * 4
    assert data["stage_time"] == [308, 280, 252, 224]
    assert data["peak_activation"] == [4, 3, 2, 1]
    assert data["bubble_ratio"] == pytest.approx(84 / 308)
    assert data["conventions"]["times"] == "per action: one stage, one microbatch"
    assert data["conventions"]["p2p"].startswith("overlapped: ")
    assert (data["memory_limit"], data["fits"], data["costs"]) == (None, None, None)


@pytest.mark.filterwarnings("default::debubble.DebubbleDeprecationWarning")
def test_the_former_name_of_a_cost_warns_and_counts(run: Run, tmp_path: Path) -> None:
    here = ["simulate", "1f1b", "-p", 4, "-m", 8, "--json"]
    new = run(*here, "--times", "F=1,B=2,launch=0.25")
    old = run(*here, "--times", "F=1,B=2,overhead=0.25")
    assert old.data["makespan"] == new.data["makespan"] == 38.5
    assert (new.err, old.code) == ("", 0)
    assert old.err == (
        "debubble: warning: --times overhead= is deprecated and goes away in debubble 0.3; "
        "use --times launch=\n"
    )
    (tmp_path / "old.yaml").write_text("times: {F: 1, B: 2, overhead: 0.25}\n")
    old = run(*here, "--costs", tmp_path / "old.yaml")
    assert old.data["makespan"] == 38.5
    assert old.err == (
        "debubble: warning: times.overhead is deprecated and goes away in debubble 0.3; "
        "use times.launch\n"
    )
    (tmp_path / "both.yaml").write_text("times: {F: 1, B: 2, overhead: 0.25, launch: 0}\n")
    both = run(*here, "--costs", tmp_path / "both.yaml")
    assert both.err.endswith("both.yaml: times: launch is there as overhead, too; give it once\n")


def test_text_has_numbers_formulas_and_conventions(run: Run) -> None:
    result = run("simulate", "1f1b", "-p", 4, "-m", 8)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(
        "1f1b: makespan 33, bubble ratio 27.27 %, peak activation 4\n4 ranks"
    )
    assert "(m + p − 1)(F + B)" in result.out
    assert "times per rank" in result.out
    assert "transfers overlapped" in result.out
    assert "stage bubble rate" not in result.out
    assert "stage bubble rate" in run("simulate", "1f1b", "-p", 4, "-m", 8, "--wide").out


@pytest.mark.parametrize(
    ("words", "makespan"),
    [
        (["--times", "F=1,I=1,W=1"], 57.0),
        (["--rank-times", "F=2,I=2,W=2"], 57.0),
        (["--rank-times", "F=2,I=2,W=2", "-v", "4"], 52.5),
        (["--times", "F=1,B=2", "--group-size", "8"], 57.0),
        (["--times", "F=1,B=2", "--option", "group_size=8"], 57.0),
    ],
)
def test_costs_chunks_and_options_reach_the_simulation(
    run: Run, words: list[str], makespan: float
) -> None:
    data = run("simulate", "vpp", "-p", 4, "-m", 8, *words, "--json").data
    assert data["makespan"] == makespan
    assert data["options"].get("group_size") in (None, 8)
    assert data["chunks"] == (4 if "-v" in words else 2)


def test_costs_per_stage_are_those_of_the_library(run: Run) -> None:
    words = ["-p", 4, "-m", 8, "--times", "F=1/1/2/1,B=2/3/2/2,p2p=0.5,OPT=4"]
    for mode in ("overlapped", "channel", "blocking"):
        data = run("simulate", "1f1b", *words, "--p2p-mode", mode, "--iterations", 2, "--json").data
        costs = db.Costs(F=[1, 1, 2, 1], B=[2, 3, 2, 2], p2p=0.5, OPT=4)
        schedule = db.make("1f1b", ranks=4, microbatches=8, iterations=2)
        assert data["makespan"] == db.simulate(schedule, costs, mode).makespan
        assert data["iterations"] == 2
        assert data["conventions"]["p2p"].startswith(mode)


def test_a_cost_file_gives_costs_sizes_units_and_a_limit(run: Run, costs: Path) -> None:
    data = run("simulate", "dualpipe-v", "--costs", costs, "--json").data
    assert (data["ranks"], data["microbatches"], data["chunks"]) == (4, 8, 2)
    assert data["conventions"]["times"] == "per rank ÷ 2 chunks"
    assert data["units"] == {"time": "ms", "memory": "GB"}
    assert (data["conventions"]["time_unit"], data["conventions"]["memory_unit"]) == ("ms", "GB")
    assert (data["memory_limit"], data["fits"]) == (10.0, False)
    assert data["costs"] == "A model · A paper"
    assert run("simulate", "interleaved-1f1b", "--costs", costs, "--json").data["chunks"] == 2
    assert run("simulate", "1f1b", "--costs", costs, "--json").data["chunks"] == 1


def test_typed_sizes_win_over_a_cost_file(run: Run, costs: Path) -> None:
    words = ["--costs", costs, "-p", 2, "-m", 6, "-v", 3, "--memory", 40, "--json"]
    data = run("simulate", "interleaved-1f1b", *words).data
    assert (data["ranks"], data["microbatches"], data["chunks"]) == (2, 6, 3)
    assert (data["memory_limit"], data["fits"]) == (40.0, True)


def test_a_memory_limit_is_judged_per_rank(run: Run, costs: Path) -> None:
    def last(*words: object) -> str:
        return str(run("simulate", *words).out.splitlines()[-1])

    sizes = ("1f1b", "-p", 4, "-m", 8, "--memory")
    assert last(*sizes, 2) == "memory limit 2 activation units: exceeded on ranks 0–1"
    assert last(*sizes, 3) == "memory limit 3 activation units: exceeded on rank 0"
    assert last(*sizes, 4) == "memory limit 4 activation units: kept by all ranks"
    assert last("1f1b", "--costs", costs) == "memory limit 10 GB: exceeded on rank 0"


def test_recomputes_are_simulated_and_said(run: Run) -> None:
    words = ["1f1b", "-p", 4, "-m", 8, "--times", "F=1,B=2,R=0.5", "--recompute"]
    data = run("simulate", *words, "full", "--recompute-at", "with-backward", "--json").data
    assert (data["makespan"], data["recompute"]) == (38.5, "full")
    assert data["peak_activation"] == [1, 1, 1, 1]
    assert data["conventions"]["recompute"].startswith("full; R waits for the gradient")
    assert [form["difference"] for form in data["closed_forms"]] == [0, [0, 0, 0, 0]]
    data = run("simulate", *words, "0,2-3", "--json").data
    assert data["recompute"] == data["options"]["recompute"] == [0, 2, 3]
    assert data["options"]["recompute_at"] == "just-in-time"
    assert data["closed_forms"] == []
    assert {form["reason"] for form in data["nearest_forms"]} == {"forwards are recomputed"}
    assert run("simulate", "1f1b", "-p", 4, "-m", 8, "--json").data["recompute"] is None


def test_transfers_and_replicas_become_actions(run: Run) -> None:
    words = ["simulate", "1f1b", "-p", 4, "-m", 8, "--transfers", "eager", "--sharding", "fsdp"]
    words += ["--times", "F=1,B=2,unshard=0.5,reduce_grad=1"]
    data = run(*words, "--json").data
    # Nobody computes while the first weights are gathered and the last gradients reduced.
    assert data["makespan"] == 0.5 + 33 + 1
    # The formula knows nothing of replicas.
    assert [form["quantity"] for form in data["closed_forms"]] == ["peak_activation"]
    assert "\nreplicas: weights are gathered and gradients reduced" in run(*words).out
    assert (
        run("simulate", "1f1b", "-p", 4, "-m", 8, "--sharding", "ddp", "--json").data[
            "closed_forms"
        ][0]["quantity"]
        == "makespan"
    )


@pytest.mark.slow
def test_recomputes_apply_to_files_and_look_at_mode_and_limit(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    db.make("interleaved-1f1b", ranks=8, microbatches=16).save(path)
    words = ["simulate", path, "--times", "F=10,I=11,W=7,p2p=5", "--recompute", "full"]
    found = [
        run(*words, "--recompute-at", *more, "--json").data["makespan"]
        for more in (["with-backward"], ["just-in-time"], ["bubbles"], ["bubbles", "--memory", 9])
    ]
    assert found == [1632, 1522, 1522, 1482]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["1f1b", "-p", "4", "-m", "8", "--recompute", "3-1"],
            "--recompute is '3-1'; give full, or stages from 0 on such as 0,1,4-7",
        ),
        (["1f1b", "-p", "4", "-m", "8", "--recompute", "all"], "--recompute is 'all'; give full"),
        (["1f1b", "-p", "4", "-m", "8", "--recompute", "0-9999999"], "--recompute is '0-9999999'"),
        (
            ["1f1b", "-p", "4", "-m", "8", "--recompute", "4"],
            "recompute has the stage 4; stages go from 0 to 3",
        ),
        (
            ["1f1b", "-p", "4", "-m", "8", "--recompute", "0", "--recompute-at", "bubble"],
            "recompute_at is 'bubble'; did you mean 'bubbles'",
        ),
        (
            ["1f1b", "-p", "4", "-m", "8", "--recompute-at", "bubbles"],
            "--recompute-at needs stages; add --recompute full",
        ),
        (["gpip", "-p", "4", "-m", "8"], "unknown schedule 'gpip'; did you mean 'gpipe'"),
        (["1f1b"], "'1f1b' needs ranks; give -p, such as -p 8"),
        (["1f1b", "-p", "4"], "'1f1b' needs microbatches; give -m, such as -m 32"),
        (["1f1b", "-p", "0", "-m", "8"], "ranks is 0; it goes from 1 to 4,096"),
        (["1f1b", "-p", "-4", "-m", "8"], "ranks is -4; it goes from 1 to 4,096"),
        (["1f1b", "-p", "4", "-m", "1" + "0" * 30], "microbatches is 1000000000000000000000000000"),
        (["1f1b", "-p", "4096", "-m", "16777216"], "206,158,434,304 actions; the limit is 200,000"),
        (["1f1b", "-p", "4.5", "-m", "8"], "-p is '4.5'; give a whole number"),
        (["1f1b", "-p", "4", "-m", "x"], "-m is 'x'; give a whole number"),
        (["1f1b", "-p", "4", "-m", "8", "-v", "2"], "'1f1b' has chunks = 1; got 2; leave it out"),
        (
            ["vpp", "-p", "4", "-m", "8", "--group-size", "x"],
            "option group_size is 'x'; give a val",
        ),
        (
            ["vpp", "-p", "4", "-m", "8", "--option", "size=3"],
            "unknown option 'size'; known: gro",
        ),
        (["1f1b", "-p", "4", "-m", "8", "--group-size", "4"], "unknown option 'group_size'; "),
        (["1f1b", "-p", "4", "-m", "8", "--iterations", "x"], "--iterations is 'x'; give a whole"),
        (["1f1b", "-p", "4", "-m", "8", "--memory", "0"], "--memory is '0'; the limit is a positi"),
        (["1f1b", "-p", "4", "-m", "8", "--memory", "inf"], "--memory is 'inf'; the limit is a p"),
        (["1f1b", "-p", "4", "-m", "8", "--p2p-mode", "block"], "--p2p-mode is 'block'; did you"),
        (["1f1b", "-p", "4", "-m", "8", "--transfers", "late"], "--transfers is 'late'; known: "),
        (["1f1b", "-p", "4", "-m", "8", "--sharding", "fdsp"], "--sharding is 'fdsp'; did you"),
        (["1f1b", "-p", "4", "-m", "8", "--times", "F=x"], "--times: F is 'x'; give a number"),
        (["1f1b", "-p", "4", "-m", "8", "--times", "F=1/2"], "F has 2 values for 4 stages; give"),
        (["1f1b", "--times", "F=1", "--costs", "x"], "--times and --costs all give costs; use one"),
        (["1f1b", "--costs", "no.yaml"], "there is no file 'no.yaml'"),
        (["no.csv"], "there is no file 'no.csv'"),
        (["no.py:f"], "there is no file 'no.py'"),
        (["no.py"], "which function of 'no.py'? write no.py:function"),
    ],
)
def test_what_cannot_be_simulated_is_refused(refused: Run, words: list[str], message: str) -> None:
    assert refused("simulate", *words).startswith(message)


def test_a_deadlock_is_explained(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("0F0,0B1,0F1,0B0\n1F0,1F1,1B0,1B1\n")
    assert "deadlock" in refused("simulate", tmp_path / "x.csv")


def test_a_file_that_lacks_actions_is_refused(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n")
    for words in (["simulate"], ["draw"], ["export", "--to", "chrome-trace"]):
        assert refused(*words, tmp_path / "x.csv") == (
            f"{tmp_path}/x.csv: its order is wrong: 0B1 is missing; add it on rank 0\n"
            "'debubble check' lists every problem of it"
        )


def test_the_largest_costs_do_not_overflow(run: Run) -> None:
    times = "F=1e100,B=1e100,p2p=1e100,message=1e100,bandwidth=1e-100,activation=1e100"
    data = run("simulate", "1f1b", "-p", 64, "-m", 512, "--times", times, "--json").data
    assert 1e200 < data["makespan"] < 1e210


def test_actions_are_listed_with_start_and_end(run: Run, tmp_path: Path, costs: Path) -> None:
    out = run("simulate", "1f1b", "-p", 2, "-m", 2, "--times", "F=1,B=2", "--actions").out
    head, *rows = [line.split() for line in out.splitlines()[2:]]
    assert head == ["rank", "action", "stage", "kind", "microbatch", "start", "end", "duration"]
    assert rows[2] == ["0", "0B0", "0", "B", "0", "4", "6", "2"]
    assert len(rows) == 8
    # The option stands before the schedule, too, and a unit stands over the times.
    assert "start [ms]" in run("simulate", "--actions", "1f1b", "--costs", costs).out
    data = run("simulate", "1f1b", "-p", 2, "-m", 2, "--actions", "--json").data
    assert data["action_times"][0] == {
        "rank": 0, "action": "0F0", "stage": 0, "kind": "F", "microbatch": 0, "slice": 0,
        "start": 0, "end": 1, "duration": 1,
    }  # fmt: skip


def test_actions_are_written_to_files(run: Run, refused: Run, tmp_path: Path, costs: Path) -> None:
    words = ["simulate", "1f1b", "--costs", costs, "--actions"]
    result = run(*words, tmp_path / "a.csv")
    assert "makespan" in result.out
    assert result.err == f"wrote {tmp_path}/a.csv\n"
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "rank,action,stage,kind,microbatch,slice,start,end,duration"
    assert len(lines) == 1 + 64
    run(*words, tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["units"] == {"time": "ms", "memory": "GB"}
    assert len(data["actions"]) == 64
    assert refused(*words, "a.txt") == "'a.txt': actions are written as .csv or .json"
    assert refused(*words, tmp_path / "no" / "a.csv").startswith(f"cannot write '{tmp_path}/no/a.c")


def test_a_function_in_a_file_is_simulated(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def order(*, ranks, microbatches, gap=0):\n"
        "    assert gap == 3\n"
        "    for rank in range(ranks):\n"
        "        yield [f'{rank}{kind}{m}' for kind in 'FB' for m in range(microbatches)]\n"
    )
    words = ["-p", 4, "-m", 8, "--option", "gap=3", "--json"]
    data = run("simulate", f"{tmp_path}/mine.py:order", *words).data
    assert (data["schedule"], data["makespan"]) == ("order", 33.0)


def test_forwards_as_late_as_possible(run: Run) -> None:
    words = ("simulate", "1f1b", "-p", 4, "-m", 8, "--times", "F=1,B=2")
    late = run(*words, "--as-late-as-possible", "--json").data
    assert late["makespan"] == run(*words, "--json").data["makespan"] == 33.0
    assert late["conventions"]["forwards"].startswith("as late as possible")
    assert "forwards: as late as possible" in run(*words, "--as-late-as-possible").out


def test_pytorchs_runtime(run: Run, refused: Run, tmp_path: Path) -> None:
    words = ["simulate", "zb-h1", "-p", 4, "-m", 8, "--times", "F=1,I=1,W=1"]
    plain = run(*words, "--json").data
    theirs = run(*words, "--runtime", "torch", "--json").data
    assert "stage 0's I does nothing" not in plain["conventions"]["times"]
    assert "stage 0's I does nothing" in theirs["conventions"]["times"]
    assert theirs["closed_forms"] == []
    path = tmp_path / "costs.yaml"
    path.write_text("runtime: torch\ntimes: {F: 1, I: 1, W: 1}\nmemory: {kept_for_weight: 0.5}\n")
    words = ["zb-h1", "-p", 4, "-m", 8, "--costs", path]
    from_file = " ".join(run("simulate", *words).out.split())
    whole = "100 % (always in PyTorch's runtime) is held from the end of I to that of W"
    assert whole in from_file
    assert whole in " ".join(run("check", *words).out.split())
    assert "PyTorch" not in run("simulate", *words, "--runtime", "any").out
    for command in ("compare", "check"):
        assert "torch" not in refused(command, *words, "--runtime", "cuda").split(";")[0]
    path.write_text("runtime: cuda\ntimes: {F: 1}\n")
    assert refused("simulate", *words).endswith(
        "runtime is 'cuda'; use 'any' or 'torch' or 'debubble'"
    )


def test_limit_in_a_unit_of_bytes(run: Run, refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text(
        "times: {F: 1}\nmemory: {unit: GB, activation: 5, static: 40}\n", encoding="utf-8"
    )
    words = ["simulate", "1f1b", "-p", 4, "-m", 8, "--costs", path, "--memory"]
    assert "memory limit 60 GB: kept by all ranks" in run(*words, "60GB").out
    assert "memory limit 59.9 GB: exceeded on rank 0" in run(*words, "59900 MB").out
    assert "of static memory (weights" in run(*words, "60GB").out
    error = refused("simulate", "1f1b", "-p", 4, "-m", 8, "--memory", "80GB")
    assert "the costs count memory without a unit" in error


def test_typed_costs_that_change_nothing_are_noted_and_those_of_files_are_not(
    run: Run, tmp_path: Path
) -> None:
    said = "OPT changes nothing: there are no optimizer steps; give --iterations"
    words = ("1f1b", "-p", "2", "-m", "4", "--times", "F=1,B=2,OPT=50")
    assert run("simulate", *words, "--json").data["notes"] == [said]
    assert f"note: {said}" in run("simulate", *words).out
    assert run("simulate", *words, "--iterations", "2", "--json").data["notes"] == []
    assert run("compare", "zb-h1", *words, "--json").data["notes"] == [said]
    assert said in run("draw", *words).err
    carried = run("simulate", "1f1b", "-p", 3, "-m", 4, "--times", "F=1,p2p_carry=1", "--json")
    assert carried.data["notes"][0].endswith("give --carry 0:2")
    trace = ("--to", "chrome-trace", "-o", str(tmp_path / "x.json"))
    assert said in run("export", *words, *trace).err
    (tmp_path / "c.yaml").write_text("times: {F: 1, B: 2, OPT: 50}")
    costs = ("--costs", str(tmp_path / "c.yaml"))
    assert run("simulate", *words[:5], *costs, "--json").data["notes"] == []


def test_a_pair_that_one_of_the_schedules_has_is_no_note(run: Run) -> None:
    words = ("-p", "4", "-m", "8", "--rank-times", "F=1,B=2,O=2.8", "--json")
    assert run("compare", "1f1b", "dualpipe-v", *words).data["notes"] == []
