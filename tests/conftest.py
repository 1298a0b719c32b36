"""Settings and fixtures every test shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import browser as browsers

CALM = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("default", derandomize=True, **CALM)
settings.register_profile("explore", derandomize=False, print_blob=True, **CALM)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

BROWSERS = {"browser", "visit"}
"""Fixtures that open a browser."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes a browser or processes, so that ``make quick`` can leave it out."""
    for item in items:
        if BROWSERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("browser")
        if item.path.parent.name in ("runtime", "torch"):
            item.add_marker("processes")


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
