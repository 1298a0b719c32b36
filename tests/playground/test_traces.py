"""Traces that are sent to the server: what they tell, limits, and nothing left behind."""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
import time
from pathlib import Path

import pytest

from debubble.playground import limits
from debubble.playground.limits import RefusedError
from debubble.playground.traces import sent_files
from tests.cli.test_trace import written
from tests.diagnosis.planted import PLANTED
from tests.diagnosis.readers.test_megatron_timers import log
from tests.patience import patience

RAW = {"content-type": "application/octet-stream"}


def body_of(files):
    """Files as the page sends them, by path."""
    parts = [{"path": path, "size": len(content)} for path, content in files.items()]
    head = json.dumps({"parts": parts}).encode()
    return len(head).to_bytes(4, "little") + head + b"".join(files.values())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The traces of a run with a slow stage, one packed."""
    folder = written(PLANTED["slow stage"](0).made, tmp_path_factory.mktemp("slow") / "traces")
    found = {f"run/traces/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
    first = next(iter(found))
    return found | {first: gzip.compress(found[first])}


@pytest.fixture
def send(ask, tmp_path, monkeypatch):
    """Send files and wait for the answer; nothing of them may be left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def call(body):
        started = ask(limits.TRACE, body, headers=RAW)
        if not started.is_success:
            return started
        name = started.json()["search"]
        while True:
            answer = ask("/api/search", {"search": name})
            if not answer.is_success or answer.json()["done"]:
                assert list(tmp_path.iterdir()) == []
                assert str(tmp_path) not in answer.text
                return answer
            time.sleep(0.1)

    return call


def test_a_folder_is_diagnosed(send, files):
    answer = send(body_of(files))
    assert answer.is_success, answer.text
    view = answer.json()["answer"]
    assert view["findings"][0]["cause"] == "slow-stage"
    assert [one["name"] for one in view["timelines"]["timelines"]] == ["observed", "predicted"]
    assert view["timelines"]["marks"]


def test_a_diagnosis_is_cancelled(ask, files, tmp_path, monkeypatch):
    from debubble.diagnosis import replay

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun, go_on = threading.Event(), threading.Event()
    check = replay.check_cancelled

    def slow():
        begun.set()
        go_on.wait(patience(60))
        check()

    monkeypatch.setattr(replay, "check_cancelled", slow)
    name = ask(limits.TRACE, body_of(files), headers=RAW).json()["search"]
    assert begun.wait(patience(60))
    answer = ask("/api/search", {"search": name, "stop": True})
    assert answer.json()["doing"].startswith("replaying ")
    go_on.set()
    while answer.is_success:
        assert not answer.json()["done"]
        time.sleep(0.05)
        answer = ask("/api/search", {"search": name})
    assert answer.status_code == 422
    assert answer.json()["message"] == "cancelled; open the traces again to see them"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"run/a.txt": b"hello"}, "run: no trace in 1 file"),
        ({"a.json": b"{", "b.json": b""}, "these files: no trace in 2 files"),
        ({"run/x.csv": b"rank,action,start,end\n0,0F0,a,b\n"}, "run: none of 1 line is an action"),
        ({"a": b"1", "a/b": b"2"}, "cannot be kept"),
    ],
)
def test_what_cannot_be_read_is_said_in_words(send, content, message):
    answer = send(body_of(content))
    assert answer.status_code == 422
    assert message in answer.json()["message"]


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../b", "a//b", "a\\b", ".", "a\0b", "a" * 130, "a/" * 9]
)
def test_paths_that_lead_elsewhere_are_refused(send, path):
    answer = send(body_of({path: b"1"}))
    assert answer.status_code == 422
    assert "no path of a file" in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"1", b"\xff\xff\xff\xff{}", b"\x02\0\0\0{}", b"\x02\0\0\0[]", body_of({"a": b"12"})[:-1],
     body_of({"a": b"12"}) + b"3", b"\x04\0\0\0\xff\xfe\xfd\xfc"],
)  # fmt: skip
def test_what_is_no_list_of_files_is_refused(body):
    with pytest.raises(RefusedError):
        sent_files(body)


def test_there_are_limits(send, ask, monkeypatch, files):
    monkeypatch.setattr(limits, "MAX_TRACE_UNPACKED", 1 << 20)
    answer = send(body_of({"bomb.json.gz": gzip.compress(bytes(8 << 20))}))
    assert "more than 1 MiB unpacked" in answer.json()["message"]
    monkeypatch.setattr(limits, "MAX_TRACED", 10)
    assert "the limits here are 10 and 512" in send(body_of(files)).json()["message"]
    many = body_of({f"{k}.csv": b"" for k in range(limits.MAX_TRACE_FILES + 1)})
    assert "at most" in send(many).json()["message"]
    large = {"content-length": str(limits.MAX_TRACE + 1)}
    assert ask(limits.TRACE, b"1", headers=RAW | large).status_code == 413
    # A form of another page cannot send this type.
    assert ask(limits.TRACE, b"1", headers={"content-type": "text/plain"}).status_code == 415


def test_sums_of_times_have_no_timeline(send):
    answer = send(body_of({"log.txt": log().encode()}))
    assert "sums of times" in answer.json()["message"]


def test_the_root_is_the_folder_that_was_opened():
    parts = sent_files(body_of({"run/a": b"1", "run/b/c": b"23"}))
    assert parts == [(("run", "a"), b"1"), (("run", "b", "c"), b"23")]
    assert all(not Path(*names).is_absolute() for names, _ in parts)
