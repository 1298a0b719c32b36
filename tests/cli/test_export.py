"""``debubble export``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.interchange.layouts import cut_text

Run = Callable[..., Any]
SIZES = ("-p", 2, "-m", 3)


def test_standard_output_is_the_default(run: Run) -> None:
    wanted = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    for words in ([], ["-o", "-"]):
        result = run("export", "1f1b", *SIZES, "--to", "torch-csv", *words)
        assert (result.code, result.out) == (0, wanted)
        assert result.err.startswith("\ntorchtitan 0.3.0 runs it with\n")
        assert "\nNeMo Automodel runs it with\n" in result.err
        quiet = run("export", "1f1b", *SIZES, "--to", "torch-csv", "--no-torchtitan", *words)
        assert (quiet.code, quiet.out, quiet.err) == (0, wanted, "")


@pytest.mark.parametrize(("to", "name"), [("torch-csv", "x.csv"), ("json", "x.json")])
def test_files_read_back(run: Run, tmp_path: Path, to: str, name: str) -> None:
    path = tmp_path / name
    result = run("export", "dualpipe-v", "-p", 2, "-m", 4, "--to", to, "-o", path)
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(f"wrote {path}\n")
    assert db.load(path) == db.make("dualpipe-v", ranks=2, microbatches=4)


def test_transfers_are_added_for_torch_csv_comms(run: Run) -> None:
    out = run("export", "1f1b", "-p", 2, "-m", 1, "--to", "torch-csv-comms").out
    assert out == (
        "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )
    out = run("export", "1f1b", "-p", 2, "-m", 1, "--to", "torch-csv-comms", "--waits").out
    assert "0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n" in out


def test_what_pytorch_does_wrong_is_said(run: Run) -> None:
    words = ["export", "zb-h1", "-p", 2, "-m", 4, "--to"]
    assert "warning: rank 1, action" in run(*words, "torch-csv").err
    assert "DistributedDataParallel" in run(*words, "torch-csv-comms").err
    assert run(*words, "json").err == ""


def test_exported_transfers_pass_the_check(run: Run, tmp_path: Path) -> None:
    for words in ([], ["--waits"]):
        path = tmp_path / "x.csv"
        command = ["export", "dualpipe-v", "-p", 4, "-m", 8, "--to", "torch-csv-comms", "-o", path]
        assert run(*command, *words).code == 0
        assert run("check", path).code == 0


def test_what_the_check_refuses_is_written_only_on_request(
    run: Run, refused: Run, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    words = ["-p", 4, "-m", 8, "--to", "torch-csv-comms", "-o", path]
    locks = ["export", "interleaved-1f1b", *words, "--transfers", "just-in-time"]
    message = refused(*locks)
    assert "as by NCCL (pair): a deadlock" in message
    assert message.endswith(
        "'debubble check' lists every problem, --unchecked writes it all the same"
    )
    assert not path.exists()
    assert run(*locks, "--unchecked").code == 0
    assert run("check", path).code == 1
    assert run(*locks, "--p2p-mode", "blocking").code == 0
    message = refused("export", "gpipe", *words, "--memory", 3)
    assert "rank 0 holds up to 8 activation units, more than the limit of 3" in message


def test_traces_have_the_costs_and_their_unit(run: Run, tmp_path: Path) -> None:
    data = run("export", "1f1b", *SIZES, "--times", "F=10,B=20", "--to", "chrome-trace").data
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == 120_000
    (tmp_path / "x.yaml").write_text("time_unit: us\ntimes: {F: 10, B: 20}")
    path = tmp_path / "x.json.gz"
    words = ["--costs", tmp_path / "x.yaml", "--to", "chrome-trace", "-o", path]
    assert run("export", "1f1b", *SIZES, *words).code == 0
    data = json.loads(gzip.decompress(path.read_bytes()))
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == 120
    assert data["otherData"]["time_unit"] == "us"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1f1b", "-p", "2", "-m", "3"], "missing option '--to'"),
        (["1f1b", "--to", "torch"], "--to 'torch' is no format; did you mean 'torch-csv'"),
        (["dualpipe", "-p", "2", "-m", "4", "--to", "torch-csv"],
         "'dualpipe' has 2 copies of the model, and a CSV gives each stage to one rank"),
        (["dualpipe", "-p", "2", "-m", "4", "--to", "torch-csv-comms"],
         "'dualpipe' has 2 copies of the model, and a CSV gives each stage to one rank"),
        (["1f1b", "-p", "2", "-m", "4", "--iterations", "2", "--to", "torch-csv"],
         "'1f1b' has 2 iterations, and a CSV holds one without optimizer step"),
        (["1f1b", "-p", "2", "-m", "4", "--to", "torch-csv", "--cut", "3/x"],
         "--cut is '3/x'; give the layers of every stage, such as 3/4/4/3"),
        (["1f1b", "-p", "2", "-m", "4", "--to", "torch-csv", "--cut", "3/3/3"],
         "the cut 3/3/3 is not one of '1f1b'; it has 3 stages; give the layers of each of its 2"),
        (["1f1b", "-p", "2", "-m", "4", "--to", "json", "--cut", "3/3"],
         "--cut is for the flags that come with torch-csv and megatron; leave it out"),
        (["1f1b", "-p", "2", "-m", "4", "--to", "json", "-o", "no/x.json"],
         "there is no folder 'no'; make it first"),
        (["1f1b", "-p", "2", "-m", "4", "--to", "chrome-trace", "-o", "no/x.json"],
         "there is no folder 'no'; make it first"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(refused: Run, words: list[str], message: str) -> None:
    assert refused("export", *words).startswith(message)


def test_a_cut_is_read_from_the_file_beside_the_order(
    run: Run, refused: Run, tmp_path: Path
) -> None:
    schedule = db.make("zb-v", ranks=2, microbatches=4)
    best, cut = tmp_path / "best.csv", tmp_path / "best.modules.json"
    schedule.save(best)
    assert run("export", best, "--to", "megatron").err == ""
    cut.write_text(cut_text(schedule.placement, [2, 3, 3, 1]))
    for to, flag in (
        ("megatron", "--pipeline-model-parallel-layout 'Ett|t*3|t*3|tL'"),
        ("torch-csv", '"layers.8", "norm", "lm_head"]'),
    ):
        result = run("export", best, "--to", to)
        assert f"note: the flags leave out the layers of stages in {cut}; add --cut {cut}" in (
            result.err.splitlines()
        )
        assert flag not in result.out + result.err
        result = run("export", best, "--to", to, "--cut", cut)
        assert flag in result.out + result.err
        assert "note:" not in result.err
    for quiet in (["json"], ["torch-csv", "--no-torchtitan"]):
        assert "note:" not in run("export", best, "--to", *quiet).err
    for wrong in ("[]", '{"layers": [1, "2"]}', "{"):
        cut.write_text(wrong)
        message = refused("export", best, "--to", "megatron", "--cut", cut)
        assert message.startswith(f"{cut}: ")
    assert "there is no file" in refused("export", best, "--to", "megatron", "--cut", "x.json")


def test_export_says_how_torchtitan_runs_the_file_or_why_not(
    run: Run, refused: Run, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    result = run("export", "zb-v", "-p", 2, "-m", 4, "--to", "torch-csv", "-o", path)
    assert f"--parallelism.pipeline_parallel_schedule_csv={path}" in result.err
    result = run("export", "zb-v", "-p", 2, "-m", 4, "--to", "torch-csv", "--cut", "2/3/3/1")
    assert '"layers.8", "norm", "lm_head"]' in result.err
    wave = tmp_path / "wave.json"
    placement = db.Placement.wave(2, 3)
    rows = [
        [f"{stage}F0" for stage in row] + [f"{stage}B0" for stage in reversed(row)]
        for row in (placement.stages_on(0), placement.stages_on(1))
    ]
    # The turns of a wave go over one rank twice in a row.
    db.Schedule.from_text(rows, placement, 1).save(wave)
    words = ["export", wave, "--to", "torch-csv", "-o", tmp_path / "y.csv"]
    assert "--no-torchtitan writes the CSV all the same" in refused(*words)
    assert not (tmp_path / "y.csv").exists()
    assert run(*words, "--no-torchtitan").code == 0
    assert (tmp_path / "y.csv").exists()


def test_megatron_arguments_on_the_command_line(run: Run) -> None:
    words = ["export", "interleaved-1f1b", "-p", 4, "-m", 8, "--to", "megatron"]
    out = run(*words, "--p2p-mode", "blocking").out.splitlines()
    assert "--no-overlap-p2p-communication" in out
    assert "--global-batch-size 8" in out


def test_options_that_change_nothing_of_the_format_are_refused(refused: Run) -> None:
    words = ("export", "1f1b", "-p", 2, "-m", 4)
    for to in ("json", "chrome-trace", "megatron", "torch-csv"):
        assert "--waits is for torch-csv-comms" in refused(*words, "--to", to, "--waits")
    for to in ("megatron", "torch-csv"):
        assert refused(*words, "--to", to, "--transfers", "eager")


def test_an_order_above_the_limit_is_written_with_a_note(run: Run) -> None:
    words = ("export", "1f1b", "-p", 4, "-m", 8, "--memory")
    said = "memory limit 3 activation units: exceeded on rank 0"
    assert said in run(*words, 3, "--to", "json", "--unchecked").err
    assert said in run(*words, 3, "--to", "chrome-trace").err
    assert run(*words, 4, "--to", "json").err == ""


@pytest.mark.parametrize("to", ["torch-csv", "torch-csv-comms", "json", "chrome-trace", "megatron"])
def test_json_has_what_is_printed_or_written(run: Run, tmp_path: Path, to: str) -> None:
    name = "1f1b" if to == "megatron" else "zb-h1"
    words = ["export", name, *SIZES, "--to", to]
    plain, data = run(*words), run(*words, "--json").data
    assert data["content"] == plain.out
    assert data["output"] is None
    assert data["schedule"] == {
        "name": name, "ranks": 2, "stages": 2, "microbatches": 3, "chunks": 1
    }  # fmt: skip
    flags = [line for lines in data["flags"].values() for line in lines]
    for text in (*data["notes"], *data["warnings"], *flags):
        assert text in plain.err + plain.out
    ending = {"json": "json", "chrome-trace": "trace.json", "megatron": "txt"}.get(to, "csv")
    path = tmp_path / f"x.{ending}"
    data = run(*words, "-o", path, "--json").data
    assert (data["content"], data["output"]) == (None, str(path))
    assert path.read_text() == plain.out
