"""What Victarry's timers write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    run = made.run(name, ranks=4, microbatches=8, steps=1)
    made.write_victarry(run, tmp_path)
    made.write_victarry(run, tmp_path, other=1)
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert (found.format, found.ranks, found.clocks) == ("victarry", 4, "ranks")
    assert found.left_out == {
        "files of other tensor-, context- or data-parallel ranks than the first": 4
    }


def test_folders_are_iterations(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=1)
    for folder in ("iteration_10", "iteration_9"):
        made.write_victarry(run, tmp_path / folder)
    found = read(tmp_path)
    assert found.steps == (0, 1)
    assert len(found.actions) == 2 * len(run.done)


def test_missing_ranks_and_open_actions(tmp_path: Path) -> None:
    made.write_victarry(made.run("1f1b", ranks=4, steps=1), tmp_path)
    files = sorted(tmp_path.iterdir())
    files[3].unlink()
    data = json.loads(files[0].read_text())
    del data["backward-3-end"]
    files[0].write_text(json.dumps(data))
    found = read(tmp_path)
    assert found.missing == ((0, 0), (0, 3))
    assert found.left_out == {
        "actions without a start or an end": 1,
        "ranks of which no step is complete (taken as missing): rank 0 lacks 0B3": 1,
    }
    files[0].rename(tmp_path / "times.json")
    files[1].unlink()
    files[2].unlink()
    with pytest.raises(FormatError, match=r"no file event_times_…_pp_rank_0_….json"):
        read(tmp_path)
