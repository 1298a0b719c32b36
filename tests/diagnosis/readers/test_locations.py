"""Global rank, host and file of every rank, as the formats have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.observed import Location, Observed
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made, made_kineto, made_megatron, made_nsys
from tests.diagnosis.readers.test_debubble_trace import save


def located(found: Observed) -> list[tuple[int | None, str | None, str | None]]:
    return [(one.global_rank, one.host, one.file) for one in found.locations]


def test_kineto(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=2, copies=2)
    made_kineto.write(run, tmp_path / "trace", host="node-a")
    found = read(tmp_path)
    assert located(found) == [
        (rank, "node-a", f"trace/rank{rank}_trace.json.gz") for rank in (0, 1, 2, 3)
    ]
    assert (found.backend, found.device) == ("nccl", "gpu")


def test_nsys(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=4)
    made_nsys.write(run, tmp_path / "report.sqlite", [0, 1, 2, 3], base=10**18, stride=8)
    assert located(read(tmp_path)) == [(8 * rank, "node-1", "report.sqlite") for rank in range(4)]


def test_debubble(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=1, first_step=0)
    save(run, tmp_path / "run.json", hosts=["a", "b"])
    assert located(read(tmp_path / "run.json")) == [
        (None, "a", "run.json"),
        (None, "b", "run.json"),
    ]
    job = {"global_ranks": [4, 6], "backend": "gloo", "device": "cpu"}
    save(run, tmp_path / "run.json", hosts=["a", "b"], job=job)
    found = read(tmp_path)
    assert [one.global_rank for one in found.locations] == [4, 6]
    assert (found.backend, found.device) == ("gloo", "cpu")


def test_victarry_and_primus(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=2)
    made.write_victarry(run, tmp_path)
    names = [f"event_times_PP2_VPP1_TPxCPxDP_rank_0_pp_rank_{r}_rank_{r}.json" for r in (0, 1)]
    assert located(read(tmp_path)) == [(0, None, names[0]), (1, None, names[1])]
    made.write_primus(run, tmp_path / "primus")
    found = read(tmp_path / "primus")
    assert located(found) == [(None, None, "pp_rank_0.json"), (None, None, "pp_rank_1.json")]


def test_table(tmp_path: Path) -> None:
    rows = ["rank,action,start,end,host,global_rank"]
    for rank in (0, 1):
        rows += [f"{rank},{rank}F0,{rank},{rank + 1.5},,"]
        rows += [f"{rank},{rank}B0,4,6,node{rank},{rank + 8}"]
    (tmp_path / "run.csv").write_text("\n".join(rows))
    assert located(read(tmp_path)) == [(8, "node0", "run.csv"), (9, "node1", "run.csv")]


@pytest.mark.parametrize("missing", [False, True])
def test_the_run_has_them(tmp_path: Path, missing: bool) -> None:
    run = made.run("1f1b", ranks=2, copies=2)
    made_kineto.write(run, tmp_path, host="node-a")
    if missing:
        (tmp_path / "rank2_trace.json.gz").unlink()
    found = diagnose(read(tmp_path)).run
    assert found.location(1, 1) == Location(3, "node-a", "rank3_trace.json.gz")
    assert found.location(1, 0).global_rank == (None if missing else 2)
    assert replace(found, locations=()).location(1, 1) == Location()


def test_files_of_megatron(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=2)
    made_megatron.write_spans(run, tmp_path / "spans", "otlp")
    made_megatron.write_unnamed_kineto(run, tmp_path / "kineto")
    made_megatron.write_megatron_app(run, tmp_path / "app" / "run.json")
    made_nsys.write(run, tmp_path / "ops" / "rank3.sqlite", [0, 1], base=10**18, names="operators")
    assert located(read(tmp_path / "spans")) == [
        (0, "node-0", "rank0.log"), (1, "node-0", "rank1.log"),
    ]  # fmt: skip
    assert located(read(tmp_path / "kineto"))[1] == (1, "node-0", "rank-1.json.gz")
    assert located(read(tmp_path / "app")) == [(None, None, "run.json")] * 2
    assert located(read(tmp_path / "ops")) == [(None, "node-1", "rank3.sqlite")] * 2
