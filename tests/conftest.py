"""Settings and fixtures every test shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import browser as browsers

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("default")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for all tests of a module."""
    yield from browsers.launch()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages; at the end none of them may have had an error."""
    opened: list[browsers.Watched] = []

    def call(address: str, **options: Any) -> Any:
        watched = browsers.Watched(browser, **options)
        opened.append(watched)
        page = watched.open(address)
        page.requests = watched.requests
        return page

    yield call
    for watched in opened:
        watched.close()
