"""Traces of MegatronApp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made, made_megatron


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 4)])
def test_what_was_written_is_read(tmp_path: Path, name: str, chunks: int) -> None:
    run = made.run(name, ranks=4, microbatches=8, chunks=chunks)
    made_megatron.write_megatron_app(run, tmp_path / "aggregated.json.gz")
    found = read(tmp_path)
    assert (found.format, found.ranks, found.steps) == ("megatron-app", 4, (7, 8))
    made.assert_recovered(found, run)
    assert found.left_out == {}


def test_ends_that_say_too_little_are_counted(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=3)
    path = tmp_path / "aggregated.json"
    made_megatron.write_megatron_app(run, path)
    events = json.loads(path.read_text())
    last = next(one for one in reversed(events) if one["ph"] == "E")
    del last["args"]["model_chunk"]
    first = next(at for at, one in enumerate(events) if one["ph"] == "B")
    path.write_text(json.dumps(events[:first] + events[first + 1 :]))
    found = read(path)
    assert found.left_out["forwards or backwards without a beginning"] == 1
    assert (
        found.left_out["ends of forwards or backwards without pp_rank, model_chunk and microbatch"]
        == 1
    )
    assert len(found.steps) == 1


def test_no_ends(tmp_path: Path) -> None:
    run = made.run("1f1b")
    path = tmp_path / "aggregated.json"
    made_megatron.write_megatron_app(run, path)
    path.write_text(path.read_text().replace('"ph": "E"', '"ph": "Z"'))
    with pytest.raises(FormatError, match="no ends of forwards and backwards with pp_rank"):
        read(path)
