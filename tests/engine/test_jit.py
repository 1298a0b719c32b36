"""Kernels run compiled or interpreted, whichever is sooner done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from debubble.engine import jit
from debubble.engine.jit import Array, Kernel, helper, kernel
from tests.kernels import run_by


def fresh() -> Kernel[int]:
    """A kernel that this process has not run yet."""
    return kernel(writes=("out",))(doubled)


def doubled(values: Array, out: Array) -> int:
    for i in range(len(values)):
        out[i] = 2 * values[i]
    return len(values)


PATIENCE = jit.INTERPRET_UNCOMPILED * len(doubled.__code__.co_code)
"""Iterations that one process interprets before it compiles."""


def run(tested: Kernel[int], work: int, kind: str = "int64") -> None:
    values, out = np.arange(5, dtype=kind), np.zeros(5, dtype=kind)
    assert tested.run(work, values, out) == 5
    assert out.tolist() == [0, 2, 4, 6, 8]


def compiled(tested: Kernel[int]) -> int:
    """Number of types of arguments that there is machine code for in this process."""
    return len(tested.compiled.signatures)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _without_code_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def test_what_is_not_compiled_yet_is_interpreted_until_compiling_pays() -> None:
    tested = fresh()
    half = PATIENCE // 2
    run(tested, half)
    run(tested, half)
    assert compiled(tested) == 0
    run(tested, jit.INTERPRET_WHEN_LOADED)
    assert compiled(tested) == 1


def test_what_was_interpreted_is_compiled_once_that_is_asked_for() -> None:
    tested = fresh()
    run(tested, jit.INTERPRET_WHEN_LOADED)
    assert compiled(tested) == 0
    with run_by(compiled=True):
        run(tested, 1)
    assert compiled(tested) == 1


def test_every_kernel_and_sort_of_arguments_is_interpreted_as_long() -> None:
    tested, other = fresh(), fresh()
    run(tested, PATIENCE)
    run(tested, PATIENCE, "int32")
    run(other, PATIENCE)
    assert compiled(tested) == compiled(other) == 0
    run(tested, jit.INTERPRET_WHEN_LOADED, "int32")
    assert (compiled(tested), compiled(other)) == (1, 0)
    run(tested, jit.INTERPRET_WHEN_LOADED)
    assert compiled(tested) == 2


class Offsets(NamedTuple):
    values: Array


@helper
def shift(out: Array, offsets: Offsets) -> None:
    for i in range(len(out)):
        out[i] += offsets.values[i]


def shifted(out: Array, offsets: Any) -> int:
    if offsets is not None:
        shift(out, offsets)
    return len(out)


def test_helpers_of_what_is_none_do_not_make_it_wait_longer() -> None:
    own = jit.INTERPRET_UNCOMPILED * len(shifted.__code__.co_code)
    offsets = Offsets(np.ones(3))
    for given, waits in ((None, False), (offsets, True)):
        tested = kernel(writes=("out",))(shifted)
        out = np.zeros(3)
        tested.run(own, out, given)
        assert compiled(tested) == 0
        tested.run(jit.INTERPRET_WHEN_LOADED, out, given)
        assert compiled(tested) == (not waits)
        assert out.tolist() == [2.0 * waits] * 3
    more = jit.INTERPRET_UNCOMPILED * len(shift.__code__.co_code)
    tested.run(more, out, offsets)
    assert compiled(tested) == 1
    assert out.tolist() == [3.0] * 3


def test_large_work_is_compiled_at_once() -> None:
    tested = fresh()
    run(tested, PATIENCE + 1)
    assert compiled(tested) == 1


def test_calls_with_a_key_of_types_give_the_same() -> None:
    tested = fresh()
    for kind in ("int64", "int32", "int64", "int32"):
        values, out = np.arange(5, dtype=kind), np.zeros(5, dtype=kind)
        assert tested.run(PATIENCE + 1, values, out, types=(kind,)) == 5
        assert out.tolist() == [0, 2, 4, 6, 8]
    assert compiled(tested) == 2


def test_code_on_disk_is_loaded_at_once_for_the_arguments_that_it_is_for() -> None:
    run(fresh(), PATIENCE + 1)
    again = fresh()
    run(again, jit.INTERPRET_WHEN_LOADED, "int32")
    assert compiled(again) == 0
    run(again, jit.INTERPRET_WHEN_LOADED)
    assert compiled(again) == 1


FACTOR = 2


def multiplied(values: Array, out: Array) -> int:
    for i in range(len(values)):
        out[i] = FACTOR * values[i]
    return len(values)


def test_code_on_disk_is_not_for_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple[bool, list[int]]:
        tested, out = kernel(writes=("out",))(multiplied), np.zeros(2, dtype=np.int64)
        ready = jit._on_disk(tested.compiled, (np.arange(2), out))
        tested.compiled(np.arange(2), out)
        return ready, out.tolist()

    assert results() == (False, [0, 2])
    assert results() == (True, [0, 2])
    # Numba knows only of changes of the file that the kernel is in.
    monkeypatch.setitem(multiplied.__globals__, "FACTOR", 3)
    assert results() == (False, [0, 3])


def test_code_counts_as_there_where_numba_does_not_tell() -> None:
    assert jit._on_disk(object(), ())


EVERYTHING = """
import sys, warnings
if sys.argv[1] == "hidden":
    sys.modules["numba"] = None  # what a missing and what a broken package look like to an import
import debubble as db
from debubble.engine import jit
found = []
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for name in ("1f1b", "zb-v", "dualpipe-v"):
        order = db.make(name, ranks=8, microbatches=200)
        timeline = db.simulate(order, db.Costs(F=1, B=2, p2p=0.1), "channel")
        found += [timeline.makespan, max(timeline.peak_activation), db.check(order).ok]
    found.append(timeline.jitter("normal:10%", samples=40).mean)
    result = db.optimize(
        ranks=2, microbatches=4, chunks=2, costs=db.Costs(F=1, I=1.5, W=0.5, p2p=0.1), cache=False
    )
    found += [result.makespan, result.lower_bound]
    assert jit._interpreted > jit.INTERPRET_BELOW
print([str(each.message) for each in warned if "numba" in str(each.message)])
print(found)
"""


@pytest.mark.slow
def test_without_numba_everything_is_interpreted_with_one_warning() -> None:
    def told(how: str) -> list[str]:
        words = [sys.executable, "-c", EVERYTHING, how]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    (warned, slow), (quiet, fast) = told("hidden"), told("there")
    assert quiet == "[]"
    assert warned.count("numba cannot be loaded") == 1
    assert "pip install numba" in warned
    assert slow == fast


def test_a_search_with_a_limit_does_not_wait_for_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested, args = fresh(), (np.arange(3, dtype="int8"), np.zeros(3, dtype="int8"))
    monkeypatch.setattr(tested, "_is_being_compiled", lambda _: True)
    looks = iter([False, False, True])
    assert not tested.wait_for(args, lambda: next(looks))
    tested.compiled(*args)
    assert tested.wait_for(args, lambda: True)
