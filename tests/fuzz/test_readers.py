"""A short, deterministic run of every reader; ``make fuzz`` runs them for longer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import READERS, accepts
from tests.fuzz.run_readers import run

SLOW = {"command", "diagnosis", "calibration-rows", "sweep-resumed"}
FEW = {"request-plan", "request-optimize", "request-trace", "request-export"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file of the user is read, and none is left."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", READERS)
def test_some_of_what_it_begins_with_is_accepted(name: str) -> None:
    reader = READERS[name]
    known = reader.seeds()
    accepted = sum(accepts(reader, content) for content in known)
    assert accepted > 0 or name in ("request-any", "request-search")


@pytest.mark.parametrize("name", [name for name in READERS if name not in FEW])
def test_damaged_inputs_are_read_or_refused(name: str) -> None:
    reader = READERS[name]
    known = reader.seeds()
    examples = 3 if name in SLOW else 25
    done: list[bool] = []

    # A seed in place of hypothesis' own choices: damage is made a hundred times as fast.
    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(st.integers(0, 1 << 30))
    def damaged(seed: int) -> None:
        done.append(accepts(reader, reader.input(Random(seed), known)))

    damaged()
    assert len(done) >= examples


WORDS = [name for name, reader in READERS.items() if reader.mutate is READERS["set"].mutate]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([name for name in WORDS if name not in SLOW]), st.text(max_size=40))
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    accepts(READERS[name], text.encode("utf-8", "surrogatepass"))


@pytest.mark.processes
def test_what_goes_wrong_is_counted_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    def read(content: bytes) -> object:
        return {}["nothing" if b"1" in content else "none"] if b"=" in content else None

    monkeypatch.setitem(READERS, "set", replace(READERS["set"], read=read))
    found = run("set", 60, engine="random", seed=0, kept=tmp_path, count=200)
    assert found.inputs >= 200
    assert 0 < found.failures < found.inputs
    assert found.accepted == found.inputs - found.failures
    (kept,) = (path for path in tmp_path.iterdir() if path.suffix != ".txt")
    assert kept.name.startswith("set-KeyError-test_readers.py")
    assert b"=" in kept.read_bytes()
