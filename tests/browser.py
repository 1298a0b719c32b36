"""A real browser for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from tests.missing import missing

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]

PATIENCE = 90_000
"""Milliseconds that pages may take; machines that are busy take long, which is no failure."""


def launch() -> Iterator[Any]:
    """A running browser; the test is skipped where there is none, unless CI is set."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed; pip install 'debubble[dev]'")
    if program is None:
        missing("no Chromium here; 'make browser' installs Debian's")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield running
        running.close()


class Watched:
    """A page whose errors and requests are written down."""

    def __init__(self, browser: Any, **options: Any) -> None:
        sizes = {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"}
        self.context = browser.new_context(**sizes | options)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type == "error" and self._note(m.text))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, text: str) -> None:
        # Browsers write refusals of the server down, which pages show in their own way.
        if "status of 422" not in text:
            self.errors.append(text)

    def open(self, address: str) -> Any:
        """Go to an address and wait for its timeline."""
        self.page.goto(address)
        self.page.wait_for_selector("debubble-timeline[ready]")
        return self.page

    def close(self) -> None:
        """Close the page; it must not have had an error."""
        self.context.close()
        assert self.errors == []
