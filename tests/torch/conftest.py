"""Pipelines in forked processes; every test ends with none of them left."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="runs pipelines on PyTorch; install torch")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    assert multiprocessing.active_children() == []
