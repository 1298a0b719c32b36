"""Pictures that pages ask for by a command: run at build, shown with a caption.

A page writes an image whose title is the command that draws it::

    ![Caption.](made/zb-v.svg "debubble draw zb-v -p 4 -m 8 -o zb-v.svg")

Commands run in a folder of their own, next to ``examples`` and ``benchmarks``; ``&&`` joins two.
``chart NAME`` is one of charts.py, for what benchmarks measured.
An ``.html`` for a ``.png``, and ``debubble serve #LINK``, are shown as screenshots of Chromium; the
first links to the page. Pictures are kept in ``build/made`` until package or command change.
"""

from __future__ import annotations

import hashlib
import html
import io
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import charts

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "made"

SYNTAX = re.compile(
    r"""!\[((?:[^\[\]]|\[[^\]]*\])+)\]\((made/[\w.-]+)\s+(?:"([^"\n]*)"|'([^'\n]*)')\)"""
)
"""Caption, target and command."""

DARK = {
    "#1f2530": "#e6e9ef", "#5d6675": "#9aa4b4", "#f2f4f7": "#2b313b", "#8791a1": "#77829a",
    "#c2185b": "#ff6b9d",
}  # fmt: skip
"""Colors of a figure's ink, rows, memory and limits, and their colors on a dark page."""

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic",
]  # fmt: skip
PLAYGROUND = {"width": 1440, "height": 900}
REPORT = {"width": 1100, "height": 900}
"""Pixels of the window: of a report at most so high, as wide as text stays readable on a page."""

IDLE = "() => ![...document.querySelectorAll('.busy')].some(each => each.checkVisibility())"
"""Whether nothing on a page says that it is at work."""
HEIGHT = (
    "() => Math.max(...[...document.querySelectorAll('main')]"
    ".map(each => each.getBoundingClientRect().bottom))"
)


class PictureError(Exception):
    """A picture whose command cannot be read, fails, or writes something else."""


@dataclass(frozen=True)
class Picture:
    """An image of a page, and how it is made."""

    page: str
    caption: str
    target: str
    command: str

    @property
    def steps(self) -> list[list[str]]:
        """Words of every command behind ``debubble``; none for a chart."""
        if self.chart is not None:
            return []
        text = self.command.partition("#")[0] if self.link is not None else self.command
        steps = [shlex.split(step) for step in text.split("&&")]
        for words in steps:
            if len(words) < 2 or words[0] != "debubble":
                raise PictureError(f"{self.page}: '{self.command}' is no command of debubble")
        return [words[1:] for words in steps]

    @property
    def link(self) -> str | None:
        """State of the playground to look at; None where a file is drawn."""
        found = re.fullmatch(r"debubble serve\s+'?#([^']*)'?", self.command)
        return found[1] if found else None

    @property
    def chart(self) -> str | None:
        """Name of a chart; None where a command draws."""
        found = re.fullmatch(r"chart ([\w-]+)", self.command)
        return found[1] if found else None

    @property
    def written(self) -> str:
        """File that the last command writes."""
        wanted = Path(self.target).name
        if self.chart is not None:
            return wanted
        for name in (wanted, f"{Path(wanted).stem}.html"):
            if name in self.steps[-1]:
                return name
        raise PictureError(f"{self.page}: '{self.command}' does not write {wanted}")

    @property
    def files(self) -> list[str]:
        """Files of the site that show it: for light and for dark pages, and the page itself."""
        stem, _, ending = Path(self.target).name.rpartition(".")
        files = [f"{stem}.{ending}", f"{stem}-dark.{ending}"]
        return [*files, self.written] if self.is_page else files

    @property
    def is_page(self) -> bool:
        """Whether the command writes a page, which is looked at."""
        return self.link is None and self.written.endswith(".html")

    @property
    def is_seen(self) -> bool:
        """Whether it takes a browser."""
        return self.link is not None or self.is_page


def asked_for(page: str, text: str) -> list[Picture]:
    """Return the pictures that a page asks for."""
    return [
        Picture(page, found[1], found[2], found[3] or found[4]) for found in SYNTAX.finditer(text)
    ]


def insert(text: str, folder: Path) -> str:
    """Return a page with a figure for every picture; a caption alone where it was not made."""

    def figure(found: re.Match[str]) -> str:
        picture = Picture("", found[1], found[2], found[3] or found[4])
        caption = f'<figcaption markdown="span">{picture.caption}</figcaption>'
        files = [name for name in picture.files if (folder / name).exists()]
        if not files:
            return f'<figure markdown="block">\n{caption}\n</figure>'
        said = html.escape(re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", picture.caption))
        images = "".join(
            f'<img src="made/{name}#only-{scheme}" alt="{said}" loading="lazy">'
            for name, scheme in zip(files, ("light", "dark"), strict=False)
        )
        image = f'<a href="made/{files[-1] if picture.is_page else files[0]}">{images}</a>'
        return f'<figure markdown="block">\n{image}\n{caption}\n</figure>'

    return SYNTAX.sub(figure, text)


def make(pictures: Iterable[Picture], folder: Path) -> None:
    """Put pictures into a folder; make those that are not kept."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = {picture.target: picture for picture in pictures}
    state = package_state() if shown else ""
    keys = {target: key_of(picture, state) for target, picture in shown.items()}
    missing = [p for target, p in shown.items() if not (KEPT / keys[target]).is_dir()]
    seen = [picture for picture in missing if picture.is_seen]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        jobs = [(p, scratch / keys[p.target]) for p in missing if p.link is None]
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            problems = list(filter(None, pool.map(drawn, jobs)))
        if problems:
            raise PictureError("\n".join(problems))
        shots = [(p, scratch / keys[p.target]) for p in seen]
        if shots and not take_screenshots(shots):
            for _, place in shots:
                shutil.rmtree(place, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        for place in scratch.iterdir():
            shutil.move(place, KEPT / place.name)
    for kept in KEPT.iterdir():
        if kept.name not in keys.values():
            shutil.rmtree(kept)
    for target, picture in shown.items():
        for file in picture.files:
            if (kept := KEPT / keys[target] / file).exists():
                shutil.copy(kept, folder / file)


def package_state() -> str:
    """Return a hash of everything that pictures depend on but their commands."""
    parts = ("src", "examples", "benchmarks")
    sources = [*(path for part in parts for path in (ROOT / part).rglob("*.*"))]
    sources += [Path(__file__), Path(charts.__file__)]
    state = hashlib.sha256()
    for path in sorted(sources):
        if path.is_file() and "__pycache__" not in path.parts:
            state.update(f"{path.relative_to(ROOT)}\0".encode())
            state.update(path.read_bytes())
    return state.hexdigest()


def key_of(picture: Picture, state: str) -> str:
    """Return the name of a picture's folder among those that are kept."""
    return hashlib.sha256(f"{picture.target}\0{picture.command}\0{state}".encode()).hexdigest()[:24]


def drawn(job: tuple[Picture, Path]) -> str:
    """Run the commands of a picture in a folder; return what went wrong."""
    from typer.testing import CliRunner

    from debubble.cli.app import app

    picture, place = job
    place.mkdir(parents=True)
    if picture.chart is not None:
        charts.draw(picture.chart, place / picture.written)
        write_dark(place / picture.written)
        return ""
    os.environ.update(COLUMNS="100", XDG_CACHE_HOME=str(place / "cache"))
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for given in ("examples", "benchmarks"):
            Path(given).symlink_to(ROOT / given)
        for words in picture.steps:
            result = CliRunner().invoke(app, words)
            if result.exit_code:
                return f"{picture.page}: {picture.command}\n{result.output}"
        if not Path(picture.written).is_file():
            return f"{picture.page}: '{picture.command}' wrote no {picture.written}"
        shutil.copy(picture.written, place)
    shutil.rmtree(place / "cache", ignore_errors=True)
    write_dark(place / picture.written)
    return ""


def write_dark(figure: Path) -> None:
    """Write the figure for dark pages next to an SVG; a PNG is its own."""
    dark = figure.with_name(f"{figure.stem}-dark{figure.suffix}")
    if figure.suffix == ".png":
        shutil.copy(figure, dark)
    if figure.suffix == ".svg":
        text = figure.read_text(encoding="utf-8")
        text = re.sub("|".join(DARK), lambda color: DARK[color[0]], text)
        dark.write_text(text.replace("fill: #ffffff", "fill: none", 1), encoding="utf-8")  # paper


def take_screenshots(shots: Sequence[tuple[Picture, Path]]) -> bool:
    """Look at pages on light and on dark screens; False where there is no browser."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print(f"No Chromium and Playwright here: {len(shots)} screenshots are left out.")
        return False
    with sync_playwright() as playwright, playground(shots) as address:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        page = browser.new_context(device_scale_factor=1.5).new_page()
        for picture, place in shots:
            place.mkdir(exist_ok=True)
            look(page, picture, place, address)
        browser.close()
    return True


def look(page: Any, picture: Picture, place: Path, address: str) -> None:
    """Take the two screenshots of a picture."""
    from PIL import Image

    size = PLAYGROUND if picture.link is not None else REPORT
    page.goto("about:blank")
    page.set_viewport_size(size)
    source = f"{address}#{picture.link}" if picture.link is not None else ""
    page.goto(source or (place / picture.written).as_uri(), wait_until="networkidle")
    page.wait_for_function(IDLE)
    height = size["height"]
    if picture.is_page:
        height = min(page.evaluate(HEIGHT), height)
    for name, scheme in zip(picture.files, ("light", "dark"), strict=False):
        page.emulate_media(color_scheme=scheme)
        page.evaluate("() => new Promise(done => setTimeout(done, 150))")
        taken = page.screenshot(clip=size | {"x": 0, "y": 0, "height": height})
        # Pages have few colors: a palette takes a third of the bytes.
        image = Image.open(io.BytesIO(taken)).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(place / name, optimize=True)


@contextmanager
def playground(shots: Sequence[tuple[Picture, Path]]) -> Iterator[str]:
    """Serve the playground where a picture shows it; its address."""
    if all(picture.link is None for picture, _ in shots):
        yield ""
        return
    command = [sys.executable, "-m", "debubble", "serve", "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert isinstance(process.stderr, io.TextIOBase)
        yield process.stderr.readline().split()[3]
    finally:
        process.terminate()
        process.wait()
