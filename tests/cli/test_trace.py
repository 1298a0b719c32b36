"""``debubble trace``: reports, data, files, conditions."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.diagnosis.example import example_trace
from debubble.interchange.cost_files import load_costs
from tests.diagnosis.made import Made, one_f_one_b
from tests.diagnosis.planted import PLANTED

Run = Callable[..., Any]


def written(made: Made, folder: Path) -> Path:
    """A made run as plain tables, one for every rank of every copy."""
    observed = made.observed()
    actions, messages = observed.actions, observed.messages
    folder.mkdir()
    for copy in range(observed.copies):
        for rank in range(observed.ranks):
            lines = ["copy,step,rank,action,start,end,issued,waited"]
            mine = np.flatnonzero((actions.copy == copy) & (actions.rank == rank))
            for at in mine.tolist():
                kind = db.Kind(int(actions.kind[at])).name
                name = f"{actions.stage[at]}{kind}{actions.microbatch[at]}"
                times = f"{actions.start[at]:.9f},{actions.end[at]:.9f},{actions.issued[at]:.9f}"
                lines.append(f"{copy},{actions.step[at]},{rank},{name},{times},")
            for end in ("source", "target"):
                here = (messages.copy == copy) & (getattr(messages, end) == rank)
                for at in np.flatnonzero(here).tolist():
                    forward = messages.kind[at] == db.Kind.F
                    stage, unit = int(messages.stage[at]), messages.microbatch[at]
                    word = "F" if forward else "B"
                    step = messages.step[at]
                    if end == "source":
                        sent = f"{messages.sent[at]:.9f}"
                        row = f"{stage}SEND_{word}{unit},{sent},{sent},,"
                    else:
                        stage += 1 if forward else -1
                        times = f"{messages.posted[at]:.9f},{messages.arrived[at]:.9f}"
                        row = f"{stage}RECV_{word}{unit},{times},,{messages.waited[at]:.9f}"
                    lines.append(f"{copy},{step},{rank},{row}")
            (folder / f"copy{copy}-rank{rank}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a slow stage."""
    return written(PLANTED["slow stage"](0).made, tmp_path_factory.mktemp("slow") / "traces")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(Made(one_f_one_b(4, 8)), tmp_path_factory.mktemp("clean") / "traces")


def test_the_report(run: Run, slow: Path) -> None:
    stage = PLANTED["slow stage"](0).where["stage"]
    result = run("trace", slow)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Stage {stage} on rank {stage} is slow: without that, a mean ")
    assert "\n1f1b: 4 ranks, 2 copies, 4 stages, 8 microbatches, 6 steps\n" in result.out
    assert re.search(r"^gain +step, ms +cause\n\d.* % .*→.* slow-stage: ", result.out, re.MULTILINE)
    words = " ".join(result.out.split())
    assert f"stage {stage} on rank {stage} takes" in words
    assert "another split of the layers" in words
    assert f"\nnext: debubble trace {slow} --set 'stage{stage}*=0." in result.out
    assert len(result.out.splitlines()) <= 24


def test_details_have_the_account_and_the_sources(run: Run, slow: Path) -> None:
    result = run("trace", slow, "--details")
    assert "\nWhere the time of a mean step went, in ms\n" in result.out
    assert "\nread as     table; rank: column rank" in result.out
    assert "--details" not in result.out


@pytest.mark.slow
def test_the_next_command_is_one_to_type(run: Run, slow: Path) -> None:
    told = run("trace", slow).out.splitlines()
    (command,) = (line for line in told if line.startswith("next: debubble "))
    result = run(*shlex.split(command)[2:])
    assert (result.code, result.err) == (0, "")
    assert "shorter" in result.out
    result = run("trace", slow, "--schedule", "zb-v")
    assert result.out.endswith(
        f"next: debubble trace {slow} --schedule zb-v --schedule-out zb-v.csv\n"
    )
    result = run("trace", slow, "--schedule", "interleaved-1f1b", "-v", "4")
    assert "--schedule interleaved-1f1b -v 4 --schedule-out" in result.out


def test_no_next_command_repeats_the_one_that_wrote_a_schedule(run: Run, tmp_path: Path) -> None:
    words = ("trace", "--example", "--schedule", "zb-v")
    assert (
        "next: debubble trace --example --schedule zb-v --schedule-out zb-v.csv" in run(*words).out
    )
    result = run(*words, "--schedule-out", tmp_path / "zb-v.csv")
    assert "next:" not in result.out
    assert "try: debubble check" in result.err


@pytest.mark.slow
def test_the_former_name_of_schedule_out_works_and_says_its_successor(
    run: Run, tmp_path: Path
) -> None:
    for words in (("--order-out", tmp_path / "a.csv"), (f"--order-out={tmp_path / 'b.csv'}",)):
        result = run("trace", "--example", *words)
        assert "debubble: --order-out is deprecated; use --schedule-out\n" in result.err
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert "--order-out" not in run("trace", "--help").out


def test_a_run_is_predicted_under_names_of_schedules(run: Run, slow: Path) -> None:
    result = run("trace", slow, "--schedule", "best.csv")
    assert result.code == 2
    assert "give the name of a schedule, such as 1f1b" in result.err


def test_a_clean_run(run: Run, clean: Path) -> None:
    result = run("trace", clean)
    assert result.code == 0
    assert result.out.startswith("Nothing to gain beyond 1 % in 6 steps")


@pytest.mark.slow
def test_the_data(run: Run, slow: Path) -> None:
    one, two = run("trace", slow, "--json"), run("trace", slow, "--json")
    assert one.out == two.out
    data = one.data
    assert (data["schedule"], data["ranks"], data["copies"]) == (
        {"name": "1f1b", "differences": []}, 4, 2,
    )  # fmt: skip
    assert data["findings"][0]["cause"] == "slow-stage"
    assert "what_if" not in data
    found = db.read_trace(slow)
    assert (
        json.loads(json.dumps(found.to_dict()))["findings"][0]["where"]
        == (data["findings"][0]["where"])
    )
    assert found.schedule == db.make("1f1b", ranks=4, microbatches=8)
    assert isinstance(found.costs, db.Costs)
    assert isinstance(found.timeline, db.Timeline)
    assert found.findings[0].cause == "slow-stage"
    assert repr(found) == "<Diagnosis 1f1b: 6 steps on 4 ranks, 1 findings: slow-stage>"


def test_costs_for_other_commands(run: Run, slow: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    result = run("trace", slow, "--costs-out", path)
    assert f"wrote {path}; try: debubble compare" in result.err
    assert load_costs(path).ranks == 4
    assert run("simulate", "1f1b", "--costs", path).code == 0
    command = shlex.split(result.err.partition("try: debubble ")[2].splitlines()[0])
    compared = run(*command, "--json").data
    assert {one["schedule"] for one in compared["rows"]} == set(command[1:3])


@pytest.mark.slow
def test_what_if(run: Run, slow: Path) -> None:
    stage = PLANTED["slow stage"](0).where["stage"]
    result = run("trace", slow, "--set", f"stage{stage}*=0.8", "--set", "p2p=0")
    assert result.out.startswith(f"stage{stage}*=0.8, p2p=0: a mean step takes ")
    assert re.search(r": \d+(\.\d)? %( ± [\d.]+)? shorter\n$", result.out)
    one, both = (
        run("trace", slow, "--set", f"{copy}stage{stage}*=0.8", "--json").data["what_if"][0]
        for copy in ("copy1.", "")
    )
    assert one["gain"] < both["gain"] / 2
    result = run("trace", slow, "--schedule", "zb-v", "--json")
    assert result.data["what_if"][0]["change"] == "zb-v"
    assert result.data["what_if"][0]["gain"] > 0


def test_an_order_to_run(run: Run, slow: Path, tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    assert run("trace", slow, "--schedule-out", path, "--schedule", "zb-h1").err.startswith(
        "wrote "
    )
    assert db.load(path).rows() == db.make("zb-h1", ranks=4, microbatches=8).rows()
    folder = written(PLANTED["swapped order"](0).made, tmp_path / "traces")
    assert run("trace", folder, "--schedule-out", path).code == 0
    assert db.load(path).rows() == db.make("1f1b", ranks=4, microbatches=8).rows()
    assert run("check", path).code == 0


@pytest.mark.slow
def test_the_page(run: Run, slow: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    assert run("trace", slow, "--html", path, "--schedule", "zb-h1").err == f"wrote {path}\n"
    page = path.read_text()
    data = json.loads(re.search('<script type="application/json">(.*?)</script>', page)[1])
    names = [timeline["name"] for timeline in data["timelines"]]
    assert names == ["observed", "predicted", "zb-h1"]
    assert "slow-stage" in [look["title"] for look in data["marks"]]
    assert "<b>slow-stage: " in page


def test_the_page_of_a_run_that_lacks_a_rank(run: Run, tmp_path: Path) -> None:
    made = Made(one_f_one_b(4, 8), copies=1, missing=((0, 2),))
    folder = written(made, tmp_path / "traces")
    result = run("trace", folder, "--html", tmp_path / "run.html")
    assert result.code == 0
    assert result.out.splitlines()[2].startswith("Rank 2 was not traced, or not as a whole: its ")
    result = run("trace", folder, "--details")
    assert "1 × ranks of which nothing was traced" in result.out


@pytest.mark.parametrize(
    ("condition", "code"),
    [("bubble>99%", 0), ("bubble>10%", 1), ("bubble>+50%", 0), ("bubble>+0.01%", 1),
     ("bubble > +3 %", 0), ("step>1ms", 1), ("step>+50ms", 0), ("step>+0.01%", 1), ("step>+50%", 0),
     ("slowdown>0.5%", 1), ("gain>3%", 1), ("gain>90%", 0)],
)  # fmt: skip
def test_conditions_for_ci(run: Run, slow: Path, condition: str, code: int) -> None:
    result = run("trace", slow, "--json", "--fail-if", condition)
    assert result.code == code
    assert result.data["findings"]
    if not code:
        assert result.err == ""
    else:
        assert result.err.startswith(f"failed: {condition}: ")
        assert ("; the plan has " in result.err) == ("+" in condition)


@pytest.mark.slow
def test_conditions_against_a_former_run(
    run: Run, refused: Run, slow: Path, clean: Path, tmp_path: Path
) -> None:
    last = tmp_path / "last.json"
    last.write_text(run("trace", clean, "--json").out)
    words = ["--fail-if", "bubble>+1%", "--fail-if", "step>+5%", "--baseline", last]
    assert run("trace", clean, "--json", *words).code == 0
    result = run("trace", slow, "--json", *words)
    assert result.code == 1
    one, two = result.err.splitlines()
    was, now = json.loads(last.read_text()), result.data
    assert one == (
        f"failed: bubble>+1%: bubble is {100 * now['bubble_ratio']:.4g} %; baseline {last} has "
        f"{100 * was['bubble_ratio']:.4g} %"
    )
    assert two.startswith(f"failed: step>+5%: step is {1e3 * now['step']:.4g} ms; baseline {last} ")
    assert now["plan"]["step"] < now["step"]
    assert refused("trace", slow, "--baseline", last).startswith("--baseline needs a condition")
    other = tmp_path / "other.json"
    for text in ("", "[]", "{}", '{"findings": 3}', "[" * 100_000):
        other.write_text(text)
        said = refused("trace", slow, "--fail-if", "bubble>+1%", "--baseline", other)
        assert said.startswith(f"{other}: not what 'debubble trace --json' prints")
    assert "nowhere" in refused("trace", slow, "--fail-if", "step>+1%", "--baseline", "nowhere")


def test_files_are_written_whatever_becomes_of_the_output(
    run: Run, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("debubble.cli.trace.report", ended)
    files = {f"--{name}-out": tmp_path / f"{name}.json" for name in ("costs", "order")}
    files["--html"] = tmp_path / "run.html"
    assert run("trace", slow, *(word for pair in files.items() for word in pair)).code == 130
    assert all(path.stat().st_size for path in files.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fail-if", "bubble"], "--fail-if 'bubble' is no condition; write bubble>30%"),
        (["--fail-if", "bubble>3ms"], "--fail-if 'bubble>3ms': bubble is in %"),
        (["--set", "x=1"], "--set 'x=1' is no change; write stage3.F*=0.9"),
        (["--set", "F*=-1"], "--set 'F*=-1': '-1' is no number from 0 on; write stage3.F*=0.9"),
        (
            ["--set", "stage3.I*=0.5"],
            "--set 'stage3.I*=0.5': nothing of the run is I there",
        ),
        (["--set", "stage9*=1"], "--set 'stage9*=1': stage 9; the last is 3"),
        (["--schedule", "zb-w"], "unknown schedule 'zb-w'; did you mean"),
        (["--set", "p2p=0", "--details"], "--details is for the report of the run; leave --set"),
        (["--set", ""], "--set '' is no change; write stage3.F*=0.9"),
        (["--schedule", "zb-v", "-v", "3"], "'zb-v' has chunks = 2; got 3; leave it out"),
        (["-v", "2"], "-v needs --schedule"),
        (["--costs-out", "x.csv"], "--costs-out 'x.csv': a cost file is written as"),
        (["--html", "x.png"], "--html 'x.png': a page ends in .html"),
        (["--schedule-out", "x.txt"], "--schedule-out 'x.txt': a schedule ends in .csv or .json"),
    ],
)
def test_what_is_refused(refused: Run, slow: Path, words: list[str], message: str) -> None:
    assert refused("trace", slow, *words).startswith(message)


def test_sums_of_times_are_costs_alone(run: Run, refused: Run, tmp_path: Path) -> None:
    from tests.diagnosis.readers.test_megatron_timers import log

    path, out = tmp_path / "train.log", tmp_path / "costs.yaml"
    path.write_text(log())
    result = run("trace", path, "--costs-out", out)
    assert result.code == 0
    assert "no causes and gains" in " ".join(result.out.split())
    assert load_costs(out).costs.F == (11.0, 20.0)
    data = run("trace", path, "--json").data
    assert (data["format"], data["findings"], data["account"]) == ("megatron-timers", [], [])
    assert "needs points in time" in refused("trace", path, "--schedule", "zb-v")
    with pytest.raises(db.FormatError, match="sums of times that say nothing of causes"):
        db.read_trace(path)


def test_nothing_to_read(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    assert str(tmp_path) in refused("trace", tmp_path)
    assert "nowhere" in refused("trace", tmp_path / "nowhere")


def test_the_example_is_a_run_with_a_slow_stage(run: Run) -> None:
    result = run("trace", "--example")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Stage 2 on rank 2 is slow: without that, ")
    assert "takes 1.5 times as long as the others" in " ".join(result.out.split())
    (command,) = (line for line in result.out.splitlines() if line.startswith("next: debubble "))
    assert command.startswith("next: debubble trace --example --set 'stage2*=")
    assert "shorter" in run(*shlex.split(command)[2:]).out


def test_the_example_names_no_machine_and_is_small() -> None:
    content = example_trace().read_bytes()
    text = gzip.decompress(content).decode()
    assert len(content) < 40_000
    assert json.loads(text)["otherData"]["hosts"] == ["host0"] * 4
    assert "/" not in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "PATH is missing; give a folder or file with traces, or try 'debubble trace"),
        (["run.json", "--example"], "--example comes with a trace; leave 'run.json' or"),
    ],
)
def test_a_trace_is_a_path_or_the_example(run: Run, args: list[str], message: str) -> None:
    result = run("trace", *args)
    assert result.code == 2
    assert message in result.err
