"""Timelines as text: exact where there is room, honest where there is none, never too wide."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import debubble as db
from debubble.core.errors import ParameterError
from debubble.engine.timeline import simulate
from debubble.view.colors import rgb, shade
from debubble.view.terminal import draw, print_timeline, tick_spacing
from tests.view.timelines import pairs, run, two_copies, zero_bubble

ANSI = re.compile("\x1b\\[[0-9;]*m")


def rows(text: str) -> list[str]:
    """The lines of ranks, without labels."""
    return [line.split("│")[1] for line in text.splitlines() if "│" in line]


def test_a_small_timeline_without_colors():
    lines = draw(run("1f1b", 2, 2), width=60, color=False).splitlines()
    assert lines[:7] == [
        "1f1b: 2 ranks, 2 microbatches",
        "makespan 9, bubble ratio 33.33 %, peak activation 2",
        "rank 0 │F0---F1---··········B0--------·····B1--------",
        "rank 1 │·····F0---B0--------F1---B1--------··········",
        "       └─────────┴─────────┴─────────┴─────────┴─────",
        "       0         2         4         6         8",
        "F forward   B full backward   · idle",
    ]
    assert " ".join(lines[7:]) == (
        "times per action: one stage, one microbatch; memory in activation units; transfers "
        "overlapped and free. See 'debubble words'."
    )


def test_ascii_only_has_no_other_characters():
    text = draw(two_copies(), width=50, color=False, ascii_only=True)
    assert text.isascii()
    assert "0 |F0--" in text
    assert "sum" not in text


def test_pairs_take_two_lines_with_the_forward_above():
    lines = rows(draw(pairs(), width=40, color=False))
    assert lines[:2] == [
        "F0-F1-······F2----······B1----B2----",
        "      ······B0----······",
    ]


def test_the_second_copy_is_in_lower_case():
    text = draw(two_copies(), width=40, color=False)
    assert rows(text)[0].startswith("F0----f1----b1----------B0")
    assert "lower case: copy 1" in text


def test_an_optimizer_step_without_duration_is_marked_on_every_rank():
    text = draw(run("1f1b", 2, 2, iterations=3), width=80, color=False)
    assert [line.count("|") for line in rows(text)] == [3, 3]
    assert "| optimizer step" in text
    assert "O optimizer step" not in text


def test_an_optimizer_step_with_duration_is_an_action():
    text = draw(zero_bubble(), width=40, color=False)
    assert rows(text) == ["F0---I0---F1---I1---W0---W1---O----"]
    assert "O optimizer step" in text
    assert "| optimizer step" not in text


def test_colors_are_those_of_the_palette():
    text = draw(run("1f1b", 1, 1), width=40, true_color=True)
    red, green, blue = rgb(shade(db.Kind.F))
    assert f"\x1b[48;2;{red};{green};{blue}m0" in text.replace("\x1b[38;5;16m", "")
    assert "\x1b[48;5;32m" in draw(run("1f1b", 1, 1), width=40)


def test_microbatches_are_written_only_where_they_fit():
    line = rows(ANSI.sub("", draw(run("gpipe", 1, 12), width=60)))[0]
    # 12 forwards of one column, then 12 backwards of two: only single digits have room.
    assert line.startswith("0123456789  0 1 2 3 4 5 6 7 8 9 ")
    assert "10" not in line


@pytest.mark.parametrize("width", [60, 80, 96])
@pytest.mark.parametrize(
    "timeline",
    [
        run("1f1b", 4, 16),
        db.simulate(db.make("zb-v", ranks=4, microbatches=8)),
        db.simulate(db.make("dualpipe-v", ranks=4, microbatches=8)),
        db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2.1, p2p=0.05)),
    ],
    ids=["1f1b", "zb-v", "dualpipe-v", "p2p"],
)
def test_without_colors_every_action_has_its_name(timeline, width):
    schedule = timeline.schedule
    lines = rows(draw(timeline, width=width, color=False))
    paired = any("OVERLAP" in cell for row in schedule.rows() for cell in row)
    count = schedule.ranks * (1 + paired)
    # The parts of a row one behind the other.
    texts = ["".join(lines[row::count]) for row in range(count)]
    found = re.findall(r"[A-Za-z]\d+", " ".join(texts))
    assert len(found) == len(timeline.schedule)


@given(
    st.sampled_from(["1f1b", "gpipe", "eager-1f1b"]),
    st.integers(1, 12),
    st.integers(1, 30),
    st.integers(20, 210),
    st.booleans(),
    st.booleans(),
)
def test_lines_are_never_longer_than_the_width(name, ranks, microbatches, width, color, plain):
    text = draw(run(name, ranks, microbatches), width=width, color=color, ascii_only=plain)
    assert max(len(line) for line in ANSI.sub("", text).splitlines()) <= width


@pytest.mark.parametrize("width", [20, 39, 60, 120])
@pytest.mark.parametrize("color", [False, True])
def test_all_of_many_ranks_are_shown(width, color):
    text = ANSI.sub("", draw(run("1f1b", 64, 128), width=width, color=color))
    labels = [line.split("│")[0].split()[-1] for line in text.splitlines() if "│" in line]
    assert labels == [str(rank) for rank in range(64)]
    assert max(map(len, text.splitlines())) <= width


def test_from_afar_columns_show_what_fills_most_of_them():
    line = rows(draw(run("1f1b", 2, 1000), width=60, color=False))[1]
    assert set(line) == {"B"}


def test_from_afar_in_color_halves_show_the_mixture():
    text = draw(run("1f1b", 2, 1000), width=60)
    assert "actions are narrower than a column" in text
    # A third of forward above, two thirds of backward below.
    assert "\x1b[38;5;32m\x1b[48;5;131m▀▀" in text


def test_bars_keep_their_proportions():
    line = rows(draw(run("gpipe", 3, 2), width=80, color=False))[0]
    columns = [len(part) for part in re.findall(r"F0-*|F1-*|·+|B0-*|B1-*", line)]
    assert columns == [6, 6, 36, 12, 12]


def test_a_name_cannot_write_escape_sequences():
    schedule = replace(db.make("1f1b", ranks=1, microbatches=1), name="a\x1b[31m\nb")
    text = draw(simulate(schedule), width=60, color=False)
    assert "\x1b" not in text
    assert text.startswith("a?[31m?b: 1 rank, 1 microbatch\n")


def test_times_carry_their_unit():
    assert "makespan 9 ms," in draw(run("1f1b", 2, 2), width=60, time_unit="ms")


def test_a_width_below_20_is_refused():
    with pytest.raises(ParameterError, match="width is 19"):
        draw(run("1f1b", 2, 2), width=19)


def test_no_time_at_all_is_drawn():
    timeline = simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=0, B=0))
    assert rows(draw(timeline, width=40, color=False)) == ["·", "·"]


class Screen(io.StringIO):
    """Standard output that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Teletype(Screen):
    """A terminal that knows ASCII only."""

    encoding = "ascii"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def test_printing_to_a_terminal_is_in_color():
    screen = Screen()
    print_timeline(run("1f1b", 2, 2), file=screen)
    assert "\x1b[48;5;32m" in screen.getvalue()


def test_printing_uses_24_bit_colors_where_the_terminal_has_them(monkeypatch):
    monkeypatch.setenv("COLORTERM", "truecolor")
    screen = Screen()
    print_timeline(run("1f1b", 2, 2), file=screen)
    assert "\x1b[48;2;75;184;255m" in screen.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_printing_obeys_the_environment(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    screen = Screen()
    print_timeline(run("1f1b", 2, 2), file=screen)
    assert "\x1b" not in screen.getvalue()


def test_printing_to_a_file_has_no_colors():
    out = io.StringIO()
    print_timeline(run("1f1b", 2, 2), file=out)
    assert out.getvalue() == draw(run("1f1b", 2, 2), color=False) + "\n"


def test_printing_where_only_ascii_can_be_written():
    screen = Teletype()
    print_timeline(run("1f1b", 2, 2), file=screen)
    assert screen.getvalue().isascii()


@pytest.mark.processes
def test_drawing_loads_neither_rich_nor_matplotlib():
    code = (
        "import sys, debubble as db\n"
        "from debubble.view.terminal import draw\n"
        "draw(db.simulate(db.make('1f1b', ranks=2, microbatches=2)), width=60)\n"
        "print([m for m in ('matplotlib', 'rich', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("least", "step"), [(0.9, 1), (1, 1), (1.1, 2), (3, 5), (6, 10), (0.03, 0.05), (4000, 5000)]
)
def test_steps_of_an_axis_are_round(least, step):
    assert tick_spacing(least) == pytest.approx(step)


def test_transfers_that_are_actions_have_rows_of_their_own() -> None:
    from debubble.lowering.chain import lower

    made = lower(db.make("1f1b", ranks=2, microbatches=3), transfers="eager")
    lines = draw(db.simulate(made, db.Costs(F=1, B=2)), width=60, color=False).splitlines()
    rows = {line.split("│")[0].strip(): line.split("│")[1].split() for line in lines if "│" in line}
    # The last line of a name is that of rank 1, which sends gradients and receives activations.
    assert rows["send"] == ["<0", "<1", "<2"]
    assert rows["recv"] == [">0", ">1", ">2"]
    first = next(line.split("│")[1].split() for line in lines if "send │" in line)
    assert first == [">0", ">1", ">2"]
    assert any(line.startswith("send, recv: ") for line in lines)


def test_what_stages_carry_has_rows_of_its_own() -> None:
    from debubble.lowering.chain import lower

    made = lower(db.make("1f1b", ranks=3, microbatches=2), carry=[(0, 2)], transfers="eager")
    timeline = db.simulate(made, db.Costs(F=1, B=2))
    lines = draw(timeline, width=70, color=False).splitlines()
    rows = [line.split("│") for line in lines if "│" in line]
    names = [name.strip() for name, _ in rows]
    assert names[:5] == ["rank 0", "send", "send C", "recv", "recv C"]
    found = {name: row.split() for name, (_, row) in zip(names[:5], rows, strict=False)}
    assert found["send C"] == [">0", ">1"]
    assert found["recv C"] == ["<0", "<1"]
    assert any("send C, recv C: what stages carry" in line for line in lines)
    narrow = draw(timeline, width=40, color=False).splitlines()
    short = [line.split("│")[0].strip() for line in narrow if "│" in line]
    assert short[:5] == ["0", "s", "S", "r", "R"]


def test_transfers_without_room_are_left_out_and_named() -> None:
    from debubble.lowering.chain import lower

    made = lower(db.make("1f1b", ranks=8, microbatches=64), transfers="eager")
    text = draw(db.simulate(made), width=60, color=False)
    assert "transfers have no room here" in text
    assert "send │" not in text
