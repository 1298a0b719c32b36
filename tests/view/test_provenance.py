"""Saved reports say how they were made, and that is enough to make them again."""

from __future__ import annotations

import json
import platform
import re
import zlib
from html import unescape
from pathlib import Path

import pytest

import debubble as db
from debubble.core.command import command, run_as
from debubble.interchange.cost_files import parse_costs
from debubble.view import captions

COSTS = db.Costs.per_rank(F=2.5, I=3, W=[1, 2], p2p=0.25, activation=3, memory_unit="GiB")


@pytest.fixture(scope="module")
def timeline() -> db.Timeline:
    return db.simulate(db.make("1f1b", ranks=2, microbatches=4), COSTS)


def test_costs_come_back_from_the_report(timeline: db.Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    [block] = re.findall(r'<details class="made">.*?</details>', page)
    told = {
        name: unescape(text)
        for name, text in re.findall(r"<dt>(\w+)</dt><dd><code>(.*?)</code>", block)
    }
    assert set(told) == {"versions", "costs"}
    assert told["versions"].startswith(
        f"debubble {db.__version__}, Python {platform.python_version()}, NumPy "
    )
    assert parse_costs(told["costs"], "x.json").costs == COSTS


def test_the_command_is_told_while_it_runs_and_not_after() -> None:
    assert command() == ""
    with run_as(["compare", "a b.csv", "-p", "4"]):
        assert command() == "debubble compare 'a b.csv' -p 4"
        assert ("command", command()) in captions.facts([])
    assert command() == ""


def test_costs_of_several_timelines_stand_once_each() -> None:
    found = captions.facts([COSTS, COSTS, db.Costs()])
    assert [name for name, _ in found] == ["versions", "costs", "costs"]


def test_what_no_file_can_hold_is_told_in_words() -> None:
    assert "divided by 2 chunks" in captions.costs_text(db.Costs.per_rank(F=1, chunks=2))
    long = db.Costs(F=list(map(float, range(1, 9000))))
    assert captions.costs_text(long).endswith("characters, too long to stand here")


def test_html_of_costs_and_command_is_escaped() -> None:
    with run_as(["draw", "<script>.csv"]):
        text = captions.details([db.Costs(memory_unit="<b>", activation=1)])
    assert "<script>" not in text
    assert "<b>" not in text


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_pictures_that_a_command_drew_hold_it(
    timeline: db.Timeline, tmp_path: Path, ending: str
) -> None:
    plain, drawn = tmp_path / f"plain.{ending}", tmp_path / f"drawn.{ending}"
    timeline.save(plain)
    with run_as(["draw", "1f1b"]):
        timeline.save(drawn)
    told = f"debubble draw 1f1b\ncosts: {json.dumps(json.loads(captions.costs_text(COSTS)))}"
    assert read_text(drawn).count("debubble draw 1f1b") == 1
    assert told.splitlines()[1].split(": ", 1)[1][:40] in unescape(read_text(drawn))
    assert "debubble draw" not in read_text(plain)


def read_text(path: Path) -> str:
    """The texts of a picture: of PDF as its writer escapes them."""
    content = path.read_bytes()
    if path.suffix == ".png":
        # Texts are compressed where they are not plain.
        return "".join(
            zlib.decompress(part).decode("latin-1") if packed else part.decode("latin-1")
            for packed, part in chunks(content)
        )
    return content.decode("latin-1")


def chunks(content: bytes) -> list[tuple[bool, bytes]]:
    """Texts in a PNG file, and whether they are compressed."""
    found, at = [], 8
    while at < len(content):
        size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        data = content[at + 8 : at + 8 + size]
        if kind == b"tEXt":
            found.append((False, data.partition(b"\0")[2]))
        elif kind == b"zTXt":
            found.append((True, data.partition(b"\0")[2][1:]))
        at += size + 12
    return found
