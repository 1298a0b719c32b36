"""Machine code that several processes compile at the same time is all kept."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

from debubble.engine.kernel_files import add_one_by_one


def test_several_processes_add_to_the_files_of_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone has its own files, like a process; reading the index takes a while."""
    read = IndexDataCacheFile._load_index

    def read_slowly(files: Any) -> Any:
        found = read(files)
        time.sleep(0.01)
        return found

    monkeypatch.setattr(IndexDataCacheFile, "_load_index", read_slowly)

    def files() -> IndexDataCacheFile:
        return IndexDataCacheFile(str(tmp_path), "kernel", "stamp")

    def add(key: int) -> None:
        own = files()
        add_one_by_one(SimpleNamespace(_cache=SimpleNamespace(_cache_file=own)))
        own.save(key, f"code of {key}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(4)))
    assert [files().load(key) for key in range(4)] == [f"code of {key}" for key in range(4)]


def test_a_function_without_files_stays_as_it_is() -> None:
    function = SimpleNamespace()
    add_one_by_one(function)
    assert function == SimpleNamespace()
