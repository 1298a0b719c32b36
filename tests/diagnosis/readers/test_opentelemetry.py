"""Megatron's OpenTelemetry spans, as three exporters write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made, made_megatron


@pytest.mark.parametrize("form", ["otlp", "console", "jaeger"])
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_what_was_written_is_read(tmp_path: Path, form: str, name: str, chunks: int) -> None:
    run = made.run(name, ranks=2, microbatches=4, chunks=chunks)
    made_megatron.write_spans(run, tmp_path, form)
    found = read(tmp_path)
    assert (found.format, found.steps) == ("opentelemetry", (7, 8))
    assert (found.order_assumed, found.hosts) == (name, ("node-0", "node-0"))
    assert found.left_out == {"forwards and backwards outside of training steps": 4}
    assert len(found.actions) == len(run.done)
    rows = found.actions
    wanted = {
        (one.step - 7, one.rank, one.kind, one.stage, one.microbatch): one.end for one in run.done
    }
    columns = (rows.step, rows.rank, rows.kind, rows.stage, rows.microbatch)
    ends = dict(zip(zip(*(each.tolist() for each in columns), strict=True), rows.end, strict=True))
    assert sorted(ends) == sorted(wanted)
    zero = min(one.start for one in run.done)
    assert all(ends[key] == pytest.approx(end - zero, abs=5e-6) for key, end in wanted.items())


def test_only_the_last_rank_exports_by_default(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=4, microbatches=8)
    made_megatron.write_spans(run, tmp_path, "otlp", only=3)
    found = read(tmp_path)
    assert found.missing == ((0, 0), (0, 1), (0, 2))
    assert "on a GPU they are launches" in found.taken_for["times"]


def test_spans_without_microbatches_say_what_to_record(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made_megatron.write_spans(run, tmp_path, "otlp")
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("megatron.microbatch.", "megatron.other."))
    with pytest.raises(FormatError, match="MEGATRON_OTEL_RANK_STRATEGY=all_ranks"):
        read(tmp_path)
