"""Build the documentation: pages go into build/pages, what zensical makes of them into build/site.

    python docs/build.py

Beside the pages in docs/ there is one for every schedule of the registry, one for the command line,
and copies of the files that pages link to. Pictures of pages are drawn by their commands, see
pictures.py. A warning of zensical is an error.
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pictures
from json_keys import write_contracts
from pictures import write_dark
from schedule_pages import write_schedules
from search import add_answers
from tables import table
from terminal import apart, with_whole_words
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import COMMANDS
from debubble.cli.app import app as program
from debubble.cli.words import glossary
from debubble.interchange.cost_model import DESCRIBED, key_reference

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"

RENAMED = {
    ROOT / "benchmarks" / "README.md": "benchmarks.md",
    ROOT / "CHANGELOG.md": "changes.md",
}
"""Pages of the site that stand elsewhere."""

FIGURES = re.compile(r"!\[([^\]]*)\]\((figures/[\w-]+)\.svg\)")


def main(made: Collection[str] | None = None) -> None:
    """Write all pages and build the site, with all pictures or those named."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as beside:
        schedules = beside.submit(write_schedules, PAGES)
        copy_pages(made)
        schedules.result()
    write_commands()
    write_contracts(PAGES / "scripts.md")
    write_cost_keys()
    write_words()
    config = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    names = "\n    ".join(f'{{ "{e.name}" = "schedules/{e.name}.md" }},' for e in db.schedules())
    config = config.replace("# SCHEDULES", names)
    (BUILD / "zensical.toml").write_text(config, encoding="utf-8")
    write_index(tomllib.loads(config))
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    ended = subprocess.run(command, cwd=BUILD, check=False).returncode
    if not ended:
        add_answers(BUILD / "site")
        for path in (BUILD / "site").rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            path.write_text(with_whole_words(text), encoding="utf-8")
    sys.exit(ended)


def copy_pages(made: Collection[str] | None) -> None:
    """The pages with their pictures; files elsewhere that they link to come along."""
    leave = shutil.ignore_patterns("*.py", "*.toml", "__pycache__", "answers")
    shutil.copytree(ROOT / "docs", PAGES, ignore=leave, dirs_exist_ok=True)
    for source, name in RENAMED.items():
        shutil.copy(source, PAGES / name)
    sources = {name: source.parent for source, name in RENAMED.items()}
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    asked = [each for path, text in pages.items() for each in pictures.asked_for(path.name, text)]
    pictures.make((x for x in asked if made is None or x.target in made), PAGES / "made")
    for page, text in pages.items():
        link = linked(sources.get(page.name, ROOT / "docs"))
        text = pictures.insert(apart(text), PAGES / "made")
        text = re.sub(r"(\[[^\]]*\])\(([^):#]+)\)", link, text)
        page.write_text(FIGURES.sub(lambda at: in_both(at[1], at[2]), text), encoding="utf-8")
    for figure in PAGES.glob("figures/*.svg"):
        write_dark(figure)


def linked(home: Path) -> Callable[[re.Match[str]], str]:
    """Links of a page whose source is in `home`: a file outside docs/ is copied into the site."""

    def link(found: re.Match[str]) -> str:
        target = (home / found[2]).resolve()
        docs = ROOT / "docs"
        if target in RENAMED:
            return f"{found[1]}({RENAMED[target]})"
        if target.is_relative_to(docs):
            return found[0] if home == docs else f"{found[1]}({target.relative_to(docs)})"
        path = target.relative_to(ROOT)
        if target.is_dir():
            return f"`{path}/`"
        copy = PAGES / "files" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, copy)
        return f"{found[1]}(files/{path})"

    return link


def in_both(alternative: str, stem: str) -> str:
    """Return a figure as Markdown: one image on light pages, another on dark ones."""
    light, dark = f"{stem}.svg#only-light", f"{stem}-dark.svg#only-dark"
    return f"![{alternative}]({light})\n![{alternative}]({dark})"


def write_commands() -> None:
    """The help of every command."""
    lines = ["# Command line", "", "The help of every command, as `--help` prints it.", ""]
    for name in COMMANDS:
        shown = CliRunner().invoke(program, [name, "--help"], prog_name="debubble").output
        lines += [f"## {name}", "", "```text", shown.strip(), "```", ""]
    (PAGES / "commands.md").write_text("\n".join(lines), encoding="utf-8")


def write_cost_keys() -> None:
    """The keys of cost files, from their schema."""
    lines: list[str] = []
    for section in DESCRIBED:
        rows = [(f"`{key}`", shape, text) for key, shape, text in key_reference(section)]
        lines += [f"### `{section}`", ""] if section else []
        lines += [*table(["key", "value", "meaning"], rows), ""]
    page = PAGES / "costs.md"
    text = page.read_text(encoding="utf-8").replace("<!-- COST KEYS -->", "\n".join(lines))
    page.write_text(text, encoding="utf-8")


def write_words() -> None:
    """The glossary of ``debubble words``, a table for each subject."""
    lines: list[str] = []
    for subject, rows in glossary().items():
        head = subject[0].upper() + subject[1:].replace("(", "(`").replace(")", "`)")
        lines += [f"## {head}", "", *table(["word", "meaning"], [*rows.items()]), ""]
    page = PAGES / "words.md"
    text = page.read_text(encoding="utf-8").replace("<!-- WORDS -->", "\n".join(lines))
    page.write_text(text, encoding="utf-8")


def write_index(config: dict[str, Any]) -> None:
    """A file with a line for every page, for language models."""
    project = config["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    for section in project["nav"]:
        for title, pages in section.items():
            lines += ["", f"## {title}", ""]
            for page in pages:
                named = page if isinstance(page, dict) else {"": page}
                lines += [line_of(name, path) for name, path in named.items()]
    (PAGES / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def line_of(title: str, path: str) -> str:
    """A page's link, and its first sentence."""
    text = (PAGES / path).read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.S)
    head, *rest = text.split("\n\n")
    prose = (part for part in rest if re.match(r"[\w*`]", part) and not part.startswith("```"))
    first = re.split(r"(?<=[.?])\s", " ".join(next(prose, "").split()))[0]
    name = title or head.removeprefix("# ").strip()
    address = f"{path.removesuffix('.md')}.html".replace("README.html", "index.html")
    return f"- [{name}]({address}): {first}".removesuffix(": ")


if __name__ == "__main__":
    main()
