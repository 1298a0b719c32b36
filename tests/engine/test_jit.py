"""When kernels run compiled, and when interpreted."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from debubble.engine import jit


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> tuple[jit.Kernel[int], list[str]]:
    """A kernel, and how it was run each time; numba is not loaded."""
    made: list[str] = []

    def length(values: jit.Array, more: int) -> int:
        made.append("interpreted")
        return len(values) + more

    kernel = jit.Kernel(length, ())
    monkeypatch.setattr(kernel, "_compiled", lambda *_: made.append("compiled"))
    monkeypatch.setattr(jit, "_loaded_here", False)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    return kernel, made


VALUES = np.arange(3)


def test_small_work_is_interpreted_until_it_adds_up(
    calls: tuple[jit.Kernel[int], list[str]],
) -> None:
    kernel, made = calls
    part = jit.INTERPRET_AT_MOST // 4
    for _ in range(5):
        kernel.run(part, VALUES, 1)
    assert made == ["interpreted"] * 3 + ["compiled"] * 2


def test_large_work_is_compiled_at_once(calls: tuple[jit.Kernel[int], list[str]]) -> None:
    kernel, made = calls
    kernel.run(jit.INTERPRET_BELOW, VALUES, 1)
    kernel.run(1, VALUES, 1)
    assert made == ["compiled"] * 2


def test_other_types_would_be_compiled_anew(calls: tuple[jit.Kernel[int], list[str]]) -> None:
    kernel, made = calls
    kernel.run(jit.INTERPRET_BELOW, VALUES, 1)
    kernel.run(1, VALUES.astype(np.int32), 1)
    assert made == ["compiled", "interpreted"]


@pytest.mark.parametrize(("here", "how"), [(True, "interpreted"), (False, "compiled")])
def test_what_one_kernel_loaded_makes_no_other_compile(
    calls: tuple[jit.Kernel[int], list[str]], monkeypatch: pytest.MonkeyPatch,
    here: bool, how: str,
) -> None:  # fmt: skip
    kernel, made = calls
    monkeypatch.setitem(sys.modules, "numba", ModuleType("numba"))
    monkeypatch.setattr(jit, "_loaded_here", here)
    kernel.run(jit.INTERPRET_WHEN_LOADED, VALUES, 1)
    assert made == [how]


def test_tests_may_ask_for_one_or_the_other(
    calls: tuple[jit.Kernel[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, made = calls
    for below in (0, 10**9, 0, 10**9):
        monkeypatch.setattr(jit, "INTERPRET_BELOW", below)
        kernel.run(1000, VALUES, 1)
    assert made == ["compiled", "interpreted"] * 2
