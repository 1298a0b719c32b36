"""Schedule files on disk, and everything a user may name a schedule by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.analysis.question import Question
from debubble.core.errors import FormatError, ParameterError
from debubble.core.schedule import Schedule
from debubble.interchange.cost_files import CostFile
from debubble.interchange.files import load, save
from debubble.interchange.named import question


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "x.json"
    save(db.make("interleaved-1f1b", ranks=2, microbatches=8, group_size=4), path)
    return path


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_ending_picks_the_format(tmp_path: Path) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=3)
    for name in ("x.json", "x.csv", "Y.CSV"):
        save(schedule, tmp_path / name)
        assert load(tmp_path / name) == schedule
    assert (tmp_path / "Y.CSV").read_text().startswith("0F0,0F1,")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n")
    assert load(tmp_path / "x.csv").rows() == [["0F0", "0B0"]]


def test_schedules_with_transfers_are_saved_as_csv(tmp_path: Path) -> None:
    from debubble.lowering.sharding import add_sharding
    from debubble.lowering.transfers import add_transfers

    lowered = add_transfers(db.make("gpipe", ranks=2, microbatches=2))
    lowered.save(tmp_path / "x.csv")
    # PyTorch needs reductions, too.
    assert load(tmp_path / "x.csv") == add_sharding(lowered)


def test_a_published_name_with_its_own_order_keeps_it(saved: Path) -> None:
    assert load(saved).name == "interleaved-1f1b"


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"group_size": 2}},
        {"options": {"group_size": "4"}},
        {"options": {"self": 4}},
        {"options": {"group_size": 4, "memory": "4"}},
        {"options": {"group_size": 4, "memory": -4}},
        {"name": "1f1b"},
        {"programs": [["0F0"], ["1F0"]]},
    ],
)
def test_a_published_name_with_another_order_is_marked(
    saved: Path, changes: dict[str, object]
) -> None:
    rewrite(saved, **changes)
    schedule = load(saved)
    assert schedule.name == changes.get("name", "interleaved-1f1b") + " (changed)"


@pytest.mark.parametrize("at", ["just-in-time", "bubbles", "with-backward"])
def test_recomputes_survive_a_file(tmp_path: Path, at: str) -> None:
    schedule = db.make("zb-h1", ranks=2, microbatches=4, recompute=[1], recompute_at=at)
    schedule.save(tmp_path / "x.json")
    again = load(tmp_path / "x.json")
    assert again == schedule
    assert again.name == "zb-h1"
    assert again.options == {"recompute": [1], "recompute_at": at}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recompute": "full"},
        {"recompute": [0, 9]},
        {"recompute": 1},
        {"recompute": [1.5]},
        {"recompute": "ful"},
        {"recompute": [0], "recompute_at": "with-backward"},
        {"recompute": [0], "recompute_at": 3},
        {"recompute_at": "just-in-time"},
    ],
)
def test_recomputes_that_options_do_not_say_are_marked(
    tmp_path: Path, options: dict[str, object]
) -> None:
    db.make("1f1b", ranks=2, microbatches=4, recompute=[0]).save(tmp_path / "x.json")
    rewrite(tmp_path / "x.json", options=options)
    assert load(tmp_path / "x.json").name == "1f1b (changed)"


def test_iterations_survive_a_file(tmp_path: Path) -> None:
    for name in ("1f1b", "pipedream-2bw"):
        for iterations in (1, 3):
            schedule = db.make(name, ranks=2, microbatches=4, iterations=iterations)
            save(schedule, tmp_path / "x.json")
            assert load(tmp_path / "x.json") == schedule
            assert load(tmp_path / "x.json").name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.txt", "'{}' is no schedule file; they end in .json or .csv"),
        ("no.csv", "there is no file '{}'"),
        ("data.csv", "there is no file '{}'; did you mean '{folder}/date.csv'?"),
        ("no/where.csv", "there is no file '{}'; there is no folder '{folder}/no'"),
        ("folder.csv", "cannot read '{}': Is a directory"),
        ("latin.csv", "{}: byte 3 is 0xe9, which is not UTF-8 text; save the file as UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "date.csv").write_text("0F0")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "latin.csv").write_bytes("0F0é".encode("latin-1"))
    with pytest.raises(FormatError) as caught:
        load(tmp_path / name)
    assert str(caught.value) == message.format(tmp_path / name, folder=tmp_path)


def test_large_files_are_not_read_to_the_end() -> None:
    from debubble.interchange.text import read_text

    with pytest.raises(FormatError, match="/dev/zero: more than 1,000 bytes"):
        read_text("/dev/zero", 1000)


def test_more_actions_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from debubble.interchange import cells

    monkeypatch.setattr(cells, "MAX_ACTIONS", 3)
    with pytest.raises(FormatError, match="x: 4 actions; the limit for files is 3"):
        cells.check_size(4, 1, 2, "x")
    cells.check_size(3, 1, 2, "x")


def test_writing_names_the_file(tmp_path: Path) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=3)
    with pytest.raises(FormatError, match=r"is no schedule file; they end in \.json or \.csv"):
        save(schedule, tmp_path / "x.yaml")
    with pytest.raises(FormatError, match=r"cannot write '.*no/x.csv': No such file or directory"):
        save(schedule, tmp_path / "no" / "x.csv")


def resolve(
    target: str, defaults: dict[str, int] | None = None, group_size: int | None = None, **sizes: Any
) -> Schedule:
    """Return the schedule that a text names, with sizes of a cost file as defaults."""
    options = {} if group_size is None else {"group_size": group_size}
    file = None if defaults is None else CostFile(db.Costs(), **defaults)
    return question(target, Question("", **sizes, options=options), file).made


def test_names_and_aliases_resolve() -> None:
    assert resolve("dapple", ranks=2, microbatches=3) == db.make("1f1b", ranks=2, microbatches=3)
    schedule = resolve("vpp", ranks=2, microbatches=4, chunks=3, group_size=4)
    assert (schedule.name, schedule.chunks, schedule.options) == (
        "interleaved-1f1b", 3, {
        "group_size": 4, "short_last_group": False,
    },
    )  # fmt: skip


def test_defaults_fill_what_is_not_given_and_fits() -> None:
    defaults = {"ranks": 4, "microbatches": 8, "chunks": 3}
    assert resolve("1f1b", defaults=defaults).chunks == 1
    assert resolve("interleaved-1f1b", defaults=defaults).chunks == 3
    assert resolve("interleaved-1f1b", chunks=2, defaults=defaults).chunks == 2
    assert resolve("1f1b", ranks=2, defaults=defaults).ranks == 2
    with pytest.raises(ParameterError, match="chunks = 1; got 3"):
        resolve("1f1b", chunks=3, defaults=defaults)


@pytest.mark.parametrize(
    ("target", "parameters", "message"),
    [
        ("1f1b", {"microbatches": 3}, "'1f1b' needs ranks; give -p, such as -p 8"),
        ("1f1b", {"ranks": 3}, "'1f1b' needs microbatches; give -m, such as -m 32"),
        ("1f1", {}, "unknown schedule '1f1'; did you mean '1f1b'"),
        ("{}", {"ranks": 3}, "x.json has ranks = 2, not 3; leave it out"),
        ("{}", {"microbatches": 3}, "x.json has microbatches = 8, not 3; leave it out"),
        ("{}", {"chunks": 3}, "x.json has chunks = 2, not 3; leave it out"),
        ("{}", {"iterations": 3}, "x.json has iterations = 1, not 3; leave it out"),
        ("{}", {"group_size": 3}, "option 'group_size' does not apply to a file: "),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    saved: Path, target: str, parameters: dict[str, int], message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        resolve(target.format(saved), **parameters)
    assert message in str(caught.value)


def test_parameters_that_agree_with_a_file_are_accepted(saved: Path) -> None:
    schedule = resolve(str(saved), ranks=2, microbatches=8, chunks=2, iterations=1)
    assert len(schedule) == np.prod([2, 8, 2, 2])
