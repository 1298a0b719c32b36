"""Dumps: those that PyTorch writes are read, and nothing in one is executed."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import time
from collections import OrderedDict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.core.errors import FormatError
from debubble.diagnosis.hang.dumps import (
    MessageState,
    are_dumps,
    empty_dumps,
    read_dump,
    read_dumps,
)
from debubble.diagnosis.readers.folder import is_trace
from tests.diagnosis.hang.recorded import dump, of_schedule, run, write
from tests.patience import patience

JOB = run(of_schedule(db.make("1f1b", ranks=2, microbatches=2), stop=(0, 1, 0, "1B0")))


class Evil:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.slow
def test_a_dump_of_pytorch_itself_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    c10d = torch._C._distributed_c10d
    group = c10d.ProcessGroupGloo(c10d.HashStore(), 0, 1, timedelta(seconds=9))
    group.allreduce([torch.ones(4)]).wait()
    # Gloo's thread retires the entry after it has woken this one.
    end = time.monotonic() + patience(30)
    while b'"retired":false' in c10d._dump_fr_trace_json().replace(b" ", b""):
        assert time.monotonic() < end
        time.sleep(0.01)
    (tmp_path / "nccl_trace_rank_7").write_bytes(c10d._dump_fr_trace())
    (tmp_path / "nccl_trace_rank_8").write_bytes(c10d._dump_fr_trace_json())
    for rank, found in zip((7, 8), read_dumps(str(tmp_path)), strict=True):
        # Its state stays "scheduled": that it is retired says that it is over.
        assert (found.rank, found.entries > 0, found.calls) == (rank, True, ())


def test_pickle_and_json_are_read_alike(tmp_path: Path) -> None:
    for as_json in (False, True):
        write(JOB, tmp_path / str(as_json), as_json=as_json)
    one, other = (read_dumps(str(tmp_path / name)) for name in ("False", "True"))
    for mine, theirs in zip(one, other, strict=True):
        assert mine.rank == theirs.rank
        for column in ("sends", "peer", "state", "form"):
            assert (getattr(mine, column) == getattr(theirs, column)).all()
        assert mine.forms == theirs.forms == ("BFloat16[2, 128]",)
        assert mine.groups == theirs.groups == {"0": (0, 1), "pp0": (0, 1)}


def test_states_and_peers_are_those_of_the_calls(tmp_path: Path) -> None:
    first, _ = read_dumps(str(write(JOB, tmp_path)))
    assert first.sends.tolist() == [True, True, False]
    assert first.peer.tolist() == [1, 1, 1]
    done, posted = MessageState.DONE, MessageState.POSTED
    assert first.state.tolist() == [done, posted, posted]


def test_packed_dumps_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json.gz").write_bytes(gzip.compress(json.dumps(dump(JOB, 0)).encode()))
    assert read_dumps(str(tmp_path))[0].rank == 0


@pytest.mark.parametrize(
    ("thing", "name"), [(Evil(), "system"), (OrderedDict(), "collections.OrderedDict")]
)
def test_a_pickle_that_asks_for_code_is_refused_with_its_name(
    tmp_path: Path, thing: Any, name: str
) -> None:
    data = {**dump(JOB, 0), "more": thing}
    (tmp_path / "rank_0").write_bytes(pickle.dumps(data, protocol=2))
    with pytest.raises(FormatError, match=name):
        read_dumps(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:200], "damaged pickle"),
        (
            lambda data: data.replace(b"op_id", b"OP_ID").replace(b"state", b"STATE"),
            "no such field",
        ),
        (lambda data: data.replace(b"send 0->1", b"send 0->9"), "group of 2 ranks"),
    ],
)
def test_what_is_wrong_with_a_dump_is_said(tmp_path: Path, change: Any, words: str) -> None:
    file = tmp_path / "rank_0"
    file.write_bytes(change(pickle.dumps(dump(JOB, 0), protocol=2)))
    with pytest.raises(FormatError, match=words):
        read_dump(file)


@pytest.mark.parametrize("value", [10**30, None, "x", [1], {}])
@pytest.mark.parametrize(
    "key", ["record_id", "p2p_seq_id", "input_sizes", "process_group", "state"]
)
def test_odd_values_are_refused_or_read(tmp_path: Path, key: str, value: Any) -> None:
    data = dump(JOB, 0)
    data["entries"][0][key] = value
    (tmp_path / "rank_0.json").write_text(json.dumps(data))
    try:
        entries = read_dump(tmp_path / "rank_0.json").entries
    except FormatError as error:
        entries = len(data["entries"]) * str(error).startswith(str(tmp_path))
    assert entries == len(data["entries"])


def test_ranks_are_in_messages_or_else_in_the_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "host7_20261126").write_bytes(pickle.dumps(dump(JOB, 1), protocol=2))
    assert [found.rank for found in read_dumps(str(tmp_path))] == [1]
    data = {**dump(JOB, 0), "entries": []}
    (tmp_path / "host7_20261126").unlink()
    (tmp_path / "dump").write_bytes(pickle.dumps(data, protocol=2))
    with pytest.raises(FormatError, match="no rank in its name; call it nccl_trace_rank_0"):
        read_dumps(str(tmp_path))


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name in ("first_0", "second_0"):
        (tmp_path / name).write_bytes(pickle.dumps(dump(JOB, 0), protocol=2))
    with pytest.raises(FormatError, match="are both of rank 0"):
        read_dumps(str(tmp_path))


def test_traces_are_no_dumps(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    assert not are_dumps(str(tmp_path), is_trace)
    with pytest.raises(FormatError, match="TORCH_FR_DUMP_TEMP_FILE"):
        read_dumps(str(tmp_path))
    with pytest.raises(FormatError, match="there is no file or folder"):
        read_dumps(str(tmp_path / "none"))


def test_a_run_with_dumps_beside_its_traces_is_a_run(tmp_path: Path) -> None:
    write(JOB, tmp_path / "comm_traces")
    assert are_dumps(str(tmp_path), is_trace)
    (tmp_path / "rank0.json").write_text('{"traceEvents": [], "distributedInfo": {"rank": 0}}')
    assert not are_dumps(str(tmp_path), is_trace)


def test_an_empty_file_is_a_dump_that_cannot_be_read(tmp_path: Path) -> None:
    write(JOB, tmp_path, without=[1])
    for name in ("nccl_trace_rank_1", "stdout.log"):
        (tmp_path / name).touch()
    assert empty_dumps(str(tmp_path), read_dumps(str(tmp_path))) == ("nccl_trace_rank_1",)
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"")
    with pytest.raises(FormatError, match="unreadable dump: nccl_trace_rank_0 is empty"):
        read_dumps(str(tmp_path))
