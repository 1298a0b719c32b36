"""Running the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.command import Result, call


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    return call
