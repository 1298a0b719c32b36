"""Schedules from functions in Python files that users name."""

from __future__ import annotations

from pathlib import Path

import pytest

import debubble as db
from debubble.core.errors import DebubbleError
from debubble.interchange.files import resolve
from debubble.schedules import registry

SOURCE = """
from dataclasses import dataclass

import debubble as db
from debubble.core.sequence import alternate, backward, forward

@dataclass
class Helper:
    x: "int" = 1

def arrays(*, ranks, microbatches):
    for rank in range(ranks):
        yield alternate(forward(rank, range(microbatches)), backward(rank, range(microbatches)))

def texts(ranks, microbatches, chunks):
    return [[f"{s}{k}{m}" for k in "FB" for m in range(microbatches)
             for s in range(rank, ranks * chunks, ranks)[::1 if k == "F" else -1]]
            for rank in range(ranks)]

def whole(*, ranks, microbatches, costs, memory, word="x", scale=1.0, flag=False, **rest):
    assert (type(word), type(scale), type(flag)) == (str, float, bool)
    return db.make("1f1b", ranks=ranks, microbatches=microbatches * (2 if flag else 1))

def fixed():
    return db.make("gpipe", ranks=3, microbatches=2)

@db.register("from-a-file", title="t", year=2020, source="s", placement=db.Placement.wave, chunks=2,
             constraints=(db.Constraint("ranks", "two ranks", lambda case: case.ranks == 2),))
def registered(*, ranks, microbatches):
    yield from ([db.make("dualpipe-v", ranks=2, microbatches=4).program(r) for r in range(2)])

@db.register("misplaced", title="t", year=2020, source="s", placement=db.Placement.v)
def misplaced(*, ranks, microbatches):
    yield from ()

def fails(*, ranks):
    return 1 / (ranks - ranks)

def picky(*, ranks, must):
    raise db.ParameterError("ranks are wrong")

def nothing(*, ranks):
    return None

def short(*, ranks, microbatches):
    yield ["0F0"]

def floats(*, ranks, microbatches):
    import numpy as np
    return [np.zeros(3)] * ranks

def wrong(*, ranks, microbatches):
    return [["0F0", "0X0"]] * ranks

def none(*, ranks, microbatches):
    return []

def numbers(*, ranks, microbatches):
    return [3] * ranks

def by_position(ranks, /):
    return None

value = 3
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


def test_yielded_programs_are_placed_round_and_round(path: str) -> None:
    schedule = resolve(f"{path}:arrays", ranks=2, microbatches=3)
    assert schedule.rows()[1] == ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]
    assert (schedule.name, schedule.placement) == ("arrays", db.Placement.loop(2, 1))
    texts = resolve(f"{path}:texts", ranks=2, microbatches=1, chunks=2)
    assert texts.rows() == [["0F0", "2F0", "2B0", "0B0"], ["1F0", "3F0", "3B0", "1B0"]]
    assert texts.placement == db.Placement.loop(2, 2)
    assert db.check(texts).ok


def test_returned_schedules_are_taken_as_they_are(path: str) -> None:
    assert resolve(f"{path}:fixed").name == "gpipe"
    defaults = {"ranks": 4, "microbatches": 2}
    made = resolve(f"{path}:whole", defaults=defaults, flag=False, word="a", scale=2.5)
    assert made == db.make("1f1b", ranks=4, microbatches=2)
    with pytest.raises(DebubbleError, match="whole returned a schedule that has microbatches = 4,"):
        resolve(f"{path}:whole", defaults=defaults, flag=True, word="a", scale=2.5)


def test_registered_functions_are_made_with_their_placement_and_constraints(path: str) -> None:
    made = resolve(f"{path}:registered", ranks=2, microbatches=4)
    assert (made.name, made.placement.name) == ("from-a-file", "V")
    with pytest.raises(DebubbleError, match="'from-a-file' needs two ranks; ranks is 3"):
        resolve(f"{path}:registered", ranks=3, microbatches=4)
    with pytest.raises(DebubbleError, match="registered needs microbatches; give -m"):
        resolve(f"{path}:registered", ranks=2)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "which function of '{0}'? write {0}:function"),
        (":", "which function of '{0}'? write {0}:function"),
        (":a-b", "'a-b' is not a function's name; write {0}:function"),
        (":array", "{0} has no function 'array'; did you mean 'arrays'?"),
        (":value", "{0} has no function 'value'; the nearest are "),
        (":fails", "{0}:fails failed: ZeroDivisionError: division by zero (line 37)"),
        (":picky", "{0}:picky needs 'must'; give --option must=VALUE"),
        (":misplaced", "{0}:misplaced failed: TypeError: Placement.v() takes 2 positional arg"),
        (":nothing", "{0}:nothing returned NoneType; return a Schedule or yield one program per"),
        (":short", "{0}:short yielded 1 programs for 2 ranks"),
        (":floats", "{0}:floats: the program of rank 0 is an array of float64 with 1 dimensions"),
        (":wrong", "{0}:wrong: rank 0, action 1: '0X0' is not an action"),
        (":none", "{0}:none yielded nothing; yield one program per rank"),
        (":numbers", "{0}:numbers: the program of rank 0 is 3; yield packed actions or"),
        (":by_position", "{0}:by_position takes 'ranks' by position only; take it by keyword"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(path: str, target: str, message: str) -> None:
    with pytest.raises(DebubbleError) as caught:
        resolve(path + target, ranks=2, microbatches=3)
    assert message.format(path) in str(caught.value)


def test_options_go_to_the_function_by_name(path: str) -> None:
    with pytest.raises(DebubbleError, match=r"picky: ranks are wrong"):
        resolve(f"{path}:picky", ranks=2, must=1)
    with pytest.raises(DebubbleError, match=r"picky has no option 'mist'; did you mean 'must'"):
        resolve(f"{path}:picky", ranks=2, mist=1)
    with pytest.raises(DebubbleError, match="arrays needs microbatches; give -m, such as -m 32"):
        resolve(f"{path}:arrays", ranks=2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "line 1: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "failed: SystemExit: 3 (line 2)"),
        ("x = 1\ny = 1 / 0\n", "failed: ZeroDivisionError: division by zero (line 2)"),
        ("raise ValueError('a\\x1b[2Jb')\n", r"failed: ValueError: a\x1b[2Jb (line 1)"),
        ("x = 1\n", "has no function 'f'; it defines no functions"),
    ],
)
def test_files_that_fail_say_where(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with pytest.raises(DebubbleError) as caught:
        resolve(f"{path}:f", ranks=2, microbatches=2)
    assert message in str(caught.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DebubbleError, match=r"there is no file '.*no\.py'"):
        resolve(f"{tmp_path}/no.py:f", ranks=2, microbatches=2)


def test_nothing_is_left_beside_the_file(path: str) -> None:
    resolve(f"{path}:arrays", ranks=2, microbatches=3)
    assert [item.name for item in Path(path).parent.iterdir()] == ["mine.py"]
