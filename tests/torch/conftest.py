"""Pipelines in forked processes; every test ends with none of them left."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="runs pipelines on PyTorch; install torch")

from tests.forkserver import serve


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let ranks be copies of a process with all that they need, even if a run begins the first."""
    if item.get_closest_marker("processes"):
        serve()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    assert multiprocessing.active_children() == []
