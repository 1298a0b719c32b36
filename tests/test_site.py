"""The site of the documentation builds without a warning, and its links lead somewhere."""

from __future__ import annotations

import gzip
import html
import importlib.util
import json
import mimetypes
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus, unquote, urlsplit

import pytest
import typer

import debubble as db
from debubble.cli.app import COMMANDS
from debubble.cli.schedules import overview
from debubble.interchange.cost_model import DESCRIBED, key_reference
from tests.missing import missing
from tests.patience import patience

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Page(HTMLParser):
    """What a page links to, what it loads, and where it can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a":
            self.links.append(found.get("href") or "")
        elif tag in ("img", "script", "iframe") or "stylesheet" in (found.get("rel") or ""):
            self.loads.append(found.get("src") or found.get("href") or "")


MADE = ("made/training.svg",)
"""Pictures that are made here: test_pictures.py has every kind."""

SIZES = {"ranks": [2, 4], "microbatches": [8, 16], "chunks": [2]}
"""Sizes of timelines here."""


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    """All pages of the site, built from nothing, in this process: kernels are compiled in it."""
    for name in ("zensical", "mkdocstrings"):
        if importlib.util.find_spec(name) is None:
            missing(f"{name} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        build = importlib.import_module("build")
        schedule_pages = importlib.import_module("schedule_pages")
        run = partial(subprocess.run, capture_output=True, text=True, timeout=patience(600))
        said: list[subprocess.CompletedProcess[str]] = []
        noted = SimpleNamespace(run=lambda *a, **k: said.append(run(*a, **k)) or said[-1])
        patch.setattr(build, "subprocess", noted)
        patch.setattr(schedule_pages, "save", saving(schedule_pages.save))
        patch.setattr(schedule_pages, "SIZES", SIZES)
        with pytest.raises(SystemExit) as ended:
            build.main(MADE)
    printed = "".join(each.stdout + each.stderr for each in said)
    assert ended.value.code == 0, printed
    assert "No issues found" in printed
    return {path: Page(path) for path in SITE.rglob("*.html")}


def saving(save: Callable[..., None]) -> Callable[..., None]:
    """Draw the first schedule, and show it for all: view/ has tests of the figures of each."""
    drawn: list[Path] = []

    def call(timelines: list[db.Timeline], path: Path, **options: object) -> None:
        if drawn:
            shutil.copy(drawn[0], path)
        else:
            save(timelines, path, **options)
            drawn.append(path)

    return call


def test_links_lead_somewhere(site: dict[Path, Page]) -> None:
    dead = []
    for path, page in site.items():
        if path.name == "404.html":
            continue  # it is for any address
        for link in [*page.links, *page.loads]:
            address = urlsplit(link)
            if address.scheme or not (address.path or address.fragment):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            target = target / "index.html" if target.is_dir() else target
            known = not address.fragment or target not in site or target.suffix != ".html"
            if not target.exists() or not (
                known or unquote(address.fragment) in site[target].anchors
            ):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site: dict[Path, Page]) -> None:
    loads = {load for page in site.values() for load in page.loads}
    assert len(loads) > 100
    assert [load for load in loads if re.match("(https?:)?//", load)] == []


def test_every_schedule_has_a_page_that_says_everything(site: dict[Path, Page]) -> None:
    del site
    for entry in db.schedules():
        text = (SITE / "schedules" / f"{entry.name}.html").read_text(encoding="utf-8")
        for head in ("When to use it", "How it works", "Formulas", "Numbers"):
            assert f">{head}" in text.replace("\n", ""), (entry.name, head)
        assert f"{entry.name}.svg" in text
        data = (SITE / "schedules" / f"{entry.name}.js").read_text(encoding="utf-8")
        cases = json.loads(data.removeprefix("debubbleTimelines(").removesuffix(");\n"))["cases"]
        assert len(cases) >= 2, entry.name
        for sizes, found in cases.items():
            made = [str(found[key]) for key in ("ranks", "microbatches", "chunks")]
            assert made == sizes.split()


def test_the_gallery_has_the_numbers_of_debubble_schedules(site: dict[Path, Page]) -> None:
    del site
    text = (SITE / "schedules" / "index.html").read_text(encoding="utf-8")
    cards = re.findall(r'<li data-name="(.+?)".*?</li>', text, re.S)
    assert cards == [entry.name for entry in db.schedules()]
    shown = {}
    for name, card in re.findall(r'<li data-name="(.+?)"(.*?)</li>', text, re.S):
        chunks, memory, bubble, _ = re.findall("<dd>(.+?)</dd>", card)
        away = re.search(r"<abbr .*?>(.+?)</abbr>", card)
        shown[name] = (chunks, memory, bubble, away and away[1])
    listed = {}
    row = re.compile(r"(\S+) +(\S+) +(\S+) +([\d.]+ %)  (?:\[(.+?)\] )?\S")
    for line in overview(db.schedules(), 100).splitlines():
        if found := row.match(line):
            name, chunks, memory, bubble, away = found.groups()
            listed[name] = (chunks, memory, bubble, away)
    assert shown == listed


def text_of(name: str) -> str:
    """The HTML of a page, with all code alike."""
    text = (SITE / f"{name}.html").read_text(encoding="utf-8")
    return text.replace('<code class="whole">', "<code>")


def test_scripts_find_the_keys_of_every_command(site: dict[Path, Page]) -> None:
    del site
    text = text_of("scripts")
    assert "CONTRACTS" not in text
    for name in COMMANDS:
        options = typer.main.get_command(import_module(f"debubble.cli.{name}").app).params
        has_json = any("--json" in option.opts for option in options)
        assert (f'<h3 id="{name}"' in text) == has_json, name
    for key in ("rows[].makespan", "problems[].fix", "flags.torchtitan", "lower_bound"):
        assert f"<code>{key}</code>" in text, key


def test_costs_have_the_keys_of_their_files(site: dict[Path, Page]) -> None:
    del site
    text = text_of("costs")
    for section in DESCRIBED:
        for key, _, meaning in key_reference(section):
            assert f"<td><code>{key}</code></td>" in text, key
            assert html.escape(meaning, quote=False) in text, key


def test_the_index_for_models_has_every_page(site: dict[Path, Page]) -> None:
    text = (SITE / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[.+?\]\((.+?)\)(?:: .+)?$", text, re.M)
    assert all((SITE / link).is_file() for link in links)
    folders = {SITE, SITE / "api", SITE / "schedules"}
    pages = {page.relative_to(SITE).as_posix() for page in site if page.parent in folders}
    assert pages - {"404.html"} <= {*links}


@pytest.fixture
def open_page(site: dict[Path, Page], visit: Callable[..., Any]) -> Callable[..., Any]:
    """Open a page of the site, at an address that may use the clipboard."""
    del site

    def answer(route: Any) -> None:
        path = SITE / unquote(urlsplit(route.request.url).path).lstrip("/")
        kind = mimetypes.guess_type(path.name)[0]
        route.fulfill(path=path, content_type=kind) if path.is_file() else route.fulfill(status=404)

    def call(name: str, wait: str = "main", **options: Any) -> Any:
        page = visit("about:blank", wait="body", permissions=CLIPBOARD, **options)
        page.route("http://localhost/**", answer)
        page.goto(f"http://localhost/{name}")
        page.wait_for_selector(wait)
        return page

    return call


CLIPBOARD = ["clipboard-read", "clipboard-write"]


def test_pages_fit_screens_of_every_size_in_the_light_and_in_the_dark(
    open_page: Callable[..., Any],
) -> None:
    page = open_page("index.html")
    for name in ("index", "schedules/index", "schedules/zb-v", "trace", "api/files"):
        page.goto(f"http://localhost/{name}.html")
        for width, scheme in ((1440, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_the_gallery_filters_and_sorts_by_keyboard(open_page: Callable[..., Any]) -> None:
    page = open_page("schedules/index.html", ".gallery-filter:not([hidden])")
    names = "[...document.querySelectorAll('.gallery > li:not([hidden])')].map(x => x.dataset.name)"
    every = page.evaluate(names)
    assert every == [entry.name for entry in db.schedules()]
    page.get_by_label("Find").focus()
    page.keyboard.type("qi")  # an author
    page.keyboard.press("Tab")
    page.keyboard.type("V pl")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("8")
    assert set(page.evaluate(names)) >= {"zb-v", "v-half", "v-min"}
    page.get_by_label("Sort by").select_option("memory")
    assert page.evaluate(names)[0] == "v-min"
    address = page.url.partition("?")[2]
    assert address == "text=qi&family=V+placement&memory=8&sort=memory"
    page.get_by_label("Find").fill("no such schedule")
    assert page.locator(".gallery-filter output").inner_text() == f"0 of {len(every)} schedules"
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function(f"{names}.length === {len(every)}")
    assert page.evaluate(names) == every
    page.goto(f"http://localhost/schedules/index.html?{address}")
    page.wait_for_selector(".gallery-filter:not([hidden])")
    assert page.evaluate(names)[0] == "v-min"


def test_the_timeline_of_a_schedule_has_sizes_to_switch(open_page: Callable[..., Any]) -> None:
    page = open_page("schedules/zb-v.html", ".timelines.ready")
    caption = page.locator("debubble-timeline .head").first
    assert "4 ranks, 8 microbatches, 2 chunks · makespan 25.5" in caption.inner_text()
    assert not page.locator(".timelines > img").first.is_visible()
    loaded = {urlsplit(address).path.lstrip("/") for address in page.requests}
    assert "schedules/zb-v-dark.svg" not in loaded
    loaded.discard("search.json")  # once for all pages
    assert sum(len(gzip.compress((SITE / name).read_bytes())) for name in loaded) < 200_000
    page.get_by_role("radio", name="16").check()
    page.get_by_label("compare with 1f1b").check()
    page.wait_for_function(
        "document.querySelector('debubble-timeline').data.runs.map(x => x.microbatches + x.name)"
        ".join() === '16zb-v,161f1b'"
    )
    box = page.locator("debubble-timeline .surface").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    span = "document.querySelector('debubble-timeline').view.span"
    before = page.evaluate(span)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function(f"{span} < {before}")


def test_pages_work_without_scripts(open_page: Callable[..., Any]) -> None:
    page = open_page("schedules/zb-v.html", java_script_enabled=False)
    assert page.locator(".timelines > img").first.is_visible()
    page.goto("http://localhost/schedules/index.html")
    assert page.locator(".gallery > li").count() == len(db.schedules())
    assert not page.locator(".gallery-filter").is_visible()


def test_copying_takes_the_command_without_its_output(open_page: Callable[..., Any]) -> None:
    page = open_page("quickstart.html", ".md-code__button")
    block = page.locator(".language-sh:has(+ .printed)").first
    block.locator(".md-code__button").click()
    page.wait_for_function("navigator.clipboard.readText().then(Boolean)")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("debubble compare ")
    assert "\n" not in copied.strip()
    assert page.locator(".printed").first.inner_text().strip()
    assert page.locator(".printed .md-code__button").count() == 0


SEARCHES = {
    "out of memory": "memory.html", "deadlock": "hangs.html", "hang": "hangs.html",
    "slow": "trace.html", "straggler": "trace.html", "bubble": "concepts.html",
    "Megatron": "megatron.html", "zb-v": "schedules/zb-v.html",
}  # fmt: skip
"""What readers search for, and the page that answers."""


def test_searches_find_the_page_that_answers(open_page: Callable[..., Any]) -> None:
    page = open_page("index.html")
    page.locator(".md-search__button").first.click()
    for words, wanted in SEARCHES.items():
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(words)
        link = f"/{wanted}?h={quote_plus(words)}"
        answer = f"li:nth-child(-n + 2) > [role=option][href*='{link}']"
        assert page.wait_for_selector(answer) is not None
