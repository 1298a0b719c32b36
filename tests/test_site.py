"""The site of the documentation builds without a warning, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer

import debubble as db
from debubble.cli.app import COMMANDS
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


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    """All pages of the site, built from nothing, in this process: kernels are compiled in it."""
    for name in ("zensical", "mkdocstrings"):
        if importlib.util.find_spec(name) is None:
            missing(f"{name} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        build = importlib.import_module("build")
        run = partial(subprocess.run, capture_output=True, text=True, timeout=patience(600))
        said: list[subprocess.CompletedProcess[str]] = []
        patch.setattr(subprocess, "run", lambda *a, **k: said.append(run(*a, **k)) or said[-1])
        patch.setattr(build, "save", saving(build.save))
        with pytest.raises(SystemExit) as ended:
            build.main()
    printed = "".join(each.stdout + each.stderr for each in said)
    assert ended.value.code == 0, printed
    assert "No issues found" in printed
    return {path: Page(path) for path in SITE.rglob("*.html")}


def saving(save: Callable[..., None]) -> Callable[..., None]:
    """Save every picture, but of pages with a timeline one: view/ has those of all schedules."""
    pages: list[Path] = []

    def call(timelines: list[db.Timeline], path: Path, **options: object) -> None:
        if path.suffix == ".html" and pages:
            shutil.copy(pages[0], path)
            return
        save(timelines, path, **options)
        pages.extend([path] * (path.suffix == ".html"))

    return call


def test_links_lead_somewhere(site: dict[Path, Page]) -> None:
    dead = []
    for path, page in site.items():
        if path.name == "404.html" or path.name.endswith("-timeline.html"):
            continue  # the first is for any address, the others are timelines
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
        assert (SITE / "schedules" / f"{entry.name}-timeline.html").stat().st_size > 100_000


def test_scripts_find_the_keys_of_every_command(site: dict[Path, Page]) -> None:
    del site
    text = (SITE / "scripts.html").read_text(encoding="utf-8")
    assert "CONTRACTS" not in text
    measured = {"hang", "profile", "run", "sweep", "doctor"}  # of jobs, machines and databases
    for name in set(COMMANDS) - measured:
        options = typer.main.get_command(import_module(f"debubble.cli.{name}").app).params
        has_json = any("--json" in option.opts for option in options)
        assert (f'<h3 id="{name}"' in text) == has_json, name
    for key in ("rows[].makespan", "problems[].fix", "flags.torchtitan", "lower_bound"):
        assert f"<code>{key}</code>" in text, key


def test_the_index_for_models_has_every_page(site: dict[Path, Page]) -> None:
    text = (SITE / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[.+?\]\((.+?)\)(?:: .+)?$", text, re.M)
    assert all((SITE / link).is_file() for link in links)
    folders = {SITE, SITE / "api", SITE / "schedules"}
    pages = {page.relative_to(SITE).as_posix() for page in site if page.parent in folders}
    assert {page for page in pages if not page.endswith(("-timeline.html", "404.html"))} <= {*links}
