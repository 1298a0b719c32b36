"""A real browser for the tests of pages."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.missing import missing
from tests.patience import patience

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    # A page that is used again stays in one process, with the code that it has compiled.
    "--process-per-site",
]

LOOKS = {
    "viewport": {"width": 1200, "height": 900}, "color_scheme": "light",
    "wait": "debubble-timeline[ready]",
}  # fmt: skip
"""How pages are looked at unless a test says otherwise."""

LIMIT = 90.0
"""Seconds that pages may take on a quiet machine."""


class Running:
    """A browser that tests of one module after the other have to themselves."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._loop = self._leave()

    @staticmethod
    def _leave() -> Any:
        """Let others run loops in this thread: between two calls Playwright's counts as running."""
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        return loop

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """The browser, until everything that was opened in it is closed."""
        asyncio._set_running_loop(self._loop)
        try:
            yield self._browser
            for context in self._browser.contexts:
                context.close()
        finally:
            self._leave()

    def close(self) -> None:
        """Close the browser; Playwright closes its loop."""
        asyncio._set_running_loop(self._loop)
        self._browser.close()


def launch() -> Iterator[Running]:
    """A running browser; the test is skipped where there is none, unless CI is set."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed; pip install 'debubble[dev]'")
    if program is None:
        missing("no Chromium here; 'make browser' installs Debian's")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        running = Running(browser)
        yield running
        running.close()


class Watched:
    """A page whose errors and requests are written down."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1e3 * patience(LIMIT))
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.requests = self.requests
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type == "error" and self._note(m.text))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, text: str) -> None:
        # Browsers write refusals of the server down, which pages show in their own way.
        if "status of 422" not in text:
            self.errors.append(text)

    def open(self, address: str, viewport: Any, color_scheme: str, wait: str) -> Any:
        """Go to an address and wait for an element, by default its timeline."""
        self.requests.clear()
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(color_scheme=color_scheme)
        self.page.goto(address)
        self.page.wait_for_selector(wait)
        return self.page

    def clear(self) -> None:
        """Leave what is open, as if nothing had been; it must not have had an error."""
        self.page.evaluate(
            "() => { try { localStorage.clear(); } catch { /* files have none */ } }"
        )
        errors = self.errors.copy()
        for other in self.context.pages:
            if other != self.page:
                other.close()
        self.page.unroute_all()
        self.context.unroute_all()
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self.errors.clear()
        assert not errors, errors


class Pages:
    """Pages of a browser, each used by one test after the other: a new one takes far longer."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.free: dict[str, list[Watched]] = defaultdict(list)

    @contextmanager
    def opened(self) -> Iterator[Callable[..., Any]]:
        """What opens addresses; afterwards its pages are free again, unless one had an error."""
        taken: list[tuple[str, Watched]] = []

        def call(address: str, **options: Any) -> Any:
            looks = {name: options.pop(name, usual) for name, usual in LOOKS.items()}
            sort = repr(sorted(options.items()))
            free = self.free[sort]
            watched = free.pop() if free else Watched(self.browser, **options)
            taken.append((sort, watched))
            return watched.open(address, **looks)

        try:
            yield call
            for sort, watched in taken:
                watched.clear()
                self.free[sort].append(watched)
        except BaseException:
            for _, watched in taken:
                watched.context.close()
            raise
