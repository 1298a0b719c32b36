"""``debubble draw``."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from debubble.analysis.question import OPTIONS
from debubble.view.options import FigureOptions

Run = Callable[..., Any]
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!", ".txt": b"A title"}


def test_without_a_file_it_draws_in_the_terminal(run: Run) -> None:
    result = run("draw", "1f1b", "-p", 4, "-m", 8)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("1f1b: 4 ranks, 8 microbatches\n")
    assert "rank 3 │······F0B0--F1" in result.out
    assert "\x1b" not in result.out


def test_several_schedules_are_drawn_one_below_the_other(run: Run) -> None:
    out = run("draw", "1f1b", "zb-h1", "-p", 2, "-m", 4).out
    assert out.index("1f1b: ") < out.index("zb-h1: ")


@pytest.mark.slow
@pytest.mark.parametrize("ending", STARTS)
def test_the_ending_picks_the_format(run: Run, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    words = ["-p", 2, "-m", 4, "-o", path, "--title", "A title", "--memory", 2]
    words += [] if ending == ".txt" else ["--critical"]
    result = run("draw", "1f1b", *words)
    assert (result.out, result.err) == ("", f"wrote {path}\n")
    assert path.read_bytes().startswith(STARTS[ending])


def test_title_and_all_schedules_are_in_the_picture(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    run("draw", "1f1b", "zb-h1", "-p", 2, "-m", 4, "-o", path, "--title", "A <b> title")
    page = path.read_text()
    assert "A &lt;b&gt; title" in page
    assert "zb-h1" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1f1b", "-p", "4", "-m", "8", "-o", "x.gif"],
         "'x.gif': pictures end in .png, .svg, .pdf, .html or .txt"),
        (["1f1b", "-p", "4", "-m", "8", "-o", "no/x.png"], "there is no folder 'no'"),
        (["1f1b", "-p", "4"], "'1f1b' needs microbatches; give -m, such as -m 32"),
        ([], "missing argument 'SCHEDULE"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(refused: Run, words: list[str], message: str) -> None:
    assert refused("draw", *words).startswith(message)


def test_a_figure_for_a_column_of_a_paper(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    words = ["--width", "3.3in", "--height", "1.4in", "--font-size", "6.5", "--numbers-from", "1"]
    words += ["--palette", "grey", "--no-memory", "--no-notes", "--no-legend", "--no-title"]
    result = run("draw", "1f1b", "-p", 2, "-m", 4, "-o", path, *words, "--range", "0:9")
    assert (result.code, result.err) == (0, f"wrote {path}\n")
    root = ElementTree.fromstring(path.read_bytes())
    assert float(root.get("width").removesuffix("pt")) == pytest.approx(3.3 * 72)
    assert float(root.get("height").removesuffix("pt")) == pytest.approx(1.4 * 72)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "4" in texts
    assert not {"1f1b", "F forward", "peak"} & set(texts)


def test_compare_takes_the_same_options(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    words = ["1f1b", "zb-h1", "-p", 2, "-m", 4, "-o", path, "--width", "84mm", "--title", "(a)"]
    assert run("compare", *words).code == 0
    assert b">(a)<" in path.read_bytes()
    assert b"fastest" not in path.read_bytes()


def test_a_former_option_works_with_a_note(run: Run, tmp_path: Path) -> None:
    words = ["draw", "1f1b", "-p", 2, "-m", 4, "-o", tmp_path / "x.svg", "--normalise"]
    found = run(*words)
    assert found.code == 0
    assert found.err.startswith("debubble: --normalise is deprecated; use --normalize\n")


def test_every_option_of_python_is_one_of_the_command_line() -> None:
    flags = {flag for command in ("draw", "compare") for flag in flags_of(command)}
    names = {spec.name for spec in fields(FigureOptions)} - {"limit", "time_unit"}
    for name in (name.replace("_", "-") for name in names):
        assert {f"--{name}", f"--no-{name}"} & flags, name


def flags_of(command: str) -> set[str]:
    """The options that a command's help lists."""
    module = importlib.import_module(f"debubble.cli.{command}")
    return {option for p in typer.main.get_command(module.app).params for option in p.opts}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "3.3in"], "--width is for a picture in a file; add -o, such as -o x.svg"),
        (["--no-title"], "--no-title is for a picture in a file"),
        (["-o", "x.html", "--no-legend"], "--no-legend is for .png, .svg, .pdf; a .html picture"),
        (["-o", "x.txt", "--palette", "grey"], "--palette is for .png, .svg, .pdf, .html;"),
        (["-o", "x.svg", "--font-size", "4"], "font size is '4'; text is readable from 6 points"),
        (["-o", "x.svg", "--range", "9"], "range is '9'; give two times such as 10:20"),
        (["-o", "x.svg", "--title", "a", "--no-title"], "--title and --no-title exclude"),
    ],
)
def test_options_that_no_picture_has_are_refused(
    refused: Run, words: list[str], message: str
) -> None:
    assert refused("draw", "1f1b", "-p", "2", "-m", "4", *words).startswith(message)


@pytest.mark.slow
def test_the_trace_of_a_run_is_drawn_predicted_above_measured(
    run: Run, refused: Callable[..., str], tmp_path: Path
) -> None:
    import debubble as db
    from debubble.interchange.trace_events import run_trace, write_trace

    schedule = db.make("1f1b", ranks=2, microbatches=4)
    timeline = db.simulate(schedule, db.Costs(F=0.001, B=0.002))
    late = (timeline.start * 1.5, timeline.start * 1.5 + timeline.duration)
    path = tmp_path / "run.json.gz"
    write_trace(
        run_trace(schedule, {"predicted": (timeline.start, timeline.end), "measured": late}), path
    )
    assert run("draw", path, "-o", tmp_path / "run.txt").code == 0
    text = (tmp_path / "run.txt").read_text()
    assert text.index("1f1b, predicted") < text.index("1f1b, measured")
    assert "makespan 15 ms" in text
    assert run("draw", path, "-o", tmp_path / "run.svg").code == 0
    for row in OPTIONS:
        alone = row.name not in ("memory", "costs") and not row.part_of
        if alone and "draw" in (row.only or ("draw",)):
            message = refused("draw", path, row.flag, row.examples[0])
            assert message.startswith(f"{row.flag} is for schedules, and {path} is a trace")
    assert "--as-late-as-possible is for" in refused("draw", path, "--as-late-as-possible")
    assert run("draw", path, "--memory", 2, "-o", tmp_path / "run.svg").code == 0
    assert run("draw", path, "1f1b", "-p", 2, "-m", 4).code == 0
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": []}')
    assert "no event is called like an action" in refused("draw", broken)


def test_a_limit_that_is_not_drawn_and_makes_no_order_is_refused(run: Run, refused: Run) -> None:
    words = ("-p", 4, "-m", 8, "--memory", 3)
    assert "--memory 3 is a line in pictures" in refused("draw", "1f1b", *words)
    assert "peak activation 3" in run("draw", "zb-v", *words).out


def test_what_a_simulation_notes_stands_beside_its_picture_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    words = ("--times", "F=1,I=1,W=1")
    run("export", "zb-v", "-p", 4, "-m", 8, "--times", "F=10,I=11,W=3", "--to", "json", "-o", path)
    stuck = ("interleaved-1f1b", "-p", 4, "-m", 8, "--transfers", "just-in-time")
    for said, asked in (("computed for other costs", (path, *words)), ("refuses it", stuck)):
        for command in (("draw",), ("draw", "-o", tmp_path / "x.txt"),
                        ("export", "--to", "chrome-trace", "-o", tmp_path / "x.json")):  # fmt: skip
            assert said in run(*command, *asked).err


def test_chunks_are_for_the_schedules_that_leave_a_choice(run: Run, refused: Run) -> None:
    both = run("draw", "1f1b", "interleaved-1f1b", "-p", 4, "-m", 8, "-v", 2)
    assert (both.code, both.out.count("makespan ")) == (0, 2)
    assert "leave it out" in refused("draw", "1f1b", "-p", 4, "-m", 8, "-v", 2)
