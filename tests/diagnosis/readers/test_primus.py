"""What Primus writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made
from tests.diagnosis.readers.third_party import third_party


@pytest.mark.parametrize(
    ("name", "numbered"),
    [("1f1b", False), ("1f1b", True), ("interleaved-1f1b", False), ("interleaved-1f1b", True),
     ("zb-h1", True), ("zb-v", True), ("dualpipe-v", True)],
)  # fmt: skip
def test_what_was_written_is_read(tmp_path: Path, name: str, numbered: bool) -> None:
    run = made.run(name, ranks=4, microbatches=8, first_step=1)
    made.write_primus(run, tmp_path, numbered=numbered)
    found = read(tmp_path)
    made.assert_recovered(found, run, own_zeros=True)
    assert (found.format, found.ranks, found.steps, found.clocks) == ("primus", 4, (1, 2), "ranks")
    assert found.stages == run.schedule.stages
    assumed = name == "interleaved-1f1b" and not numbered
    assert found.order_assumed == ("interleaved-1f1b" if assumed else "")


def test_a_rank_without_a_file_is_missing(tmp_path: Path) -> None:
    made.write_primus(made.run("1f1b", ranks=4), tmp_path)
    (tmp_path / "pp_rank_2.json").unlink()
    found = read(tmp_path)
    assert (found.ranks, found.missing) == (4, ((0, 2),))


def test_files_that_are_no_json_and_steps_that_are_cut(tmp_path: Path) -> None:
    made.write_primus(made.run("1f1b", ranks=4, steps=3, first_step=1), tmp_path)
    path = tmp_path / "pp_rank_3.json"
    path.write_text(path.read_text()[:-100])
    path = tmp_path / "pp_rank_1.json"
    data = json.loads(path.read_text())
    data["2"]["bwd_end"].pop()
    path.write_text(json.dumps(data))
    found = read(tmp_path)
    assert found.steps == (1, 3)
    assert found.missing == ((0, 3),)
    assert found.left_out == {
        "files that are no JSON": 1,
        "iterations without lists of starts and ends of the same length": 1,
        "steps that are not complete on every rank": 1,
    }


def test_a_config_alone_is_no_run(tmp_path: Path) -> None:
    made.write_primus(made.run("1f1b"), tmp_path)
    for rank in range(2):
        (tmp_path / f"pp_rank_{rank}.json").unlink()
    with pytest.raises(FormatError, match=r"no file pp_rank_0.json"):
        read(tmp_path)


def test_a_published_run() -> None:
    found = read(third_party("primus-pp8"))
    assert (found.ranks, found.microbatches, len(found.steps)) == (8, 16, 20)
    assert len(found.actions) == 20 * 8 * 16 * 2
    rows = found.actions
    spans = {
        found.steps[step]: (rows.end[here].max() - rows.start[here].min()) * 1e3
        for step in range(20) for here in [(rows.step == step) & (rows.rank == 0)]
    }  # fmt: skip
    for step, span in {2: 3193.0, 7: 3237.3, 12: 3245.8, 20: 3264.4}.items():
        assert spans[step] == pytest.approx(span, abs=0.06)
