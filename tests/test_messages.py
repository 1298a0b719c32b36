"""What people meet when they type something else: value, limit, and what to type instead."""

from __future__ import annotations

import inspect
import json
import pydoc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import app
from debubble.core.errors import did_you_mean


def refused(*words: object) -> str:
    result = CliRunner(env={"DEBUBBLE_DEBUG": "1"}).invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return result.stderr.removeprefix("debubble: ").rstrip("\n")


def test_of_many_candidates_the_three_nearest_are_named() -> None:
    many = [f"name-{number}" for number in range(60)]
    assert did_you_mean("xx-5", many) == "the nearest are 'name-5', 'name-59' and 'name-58'"
    assert did_you_mean("name-59", many).startswith("did you mean 'name-59' or ")
    assert did_you_mean("x", ["a", "b"]) == "known: a, b"
    assert did_you_mean(3, ["a", "b"]) == "known: a, b"


def test_an_unknown_schedule_names_few() -> None:
    message = refused("simulate", "xyz", "-p", 4, "-m", 8)
    assert message.startswith("unknown schedule 'xyz'; the nearest are '")
    assert message.endswith("'; 'debubble schedules' lists all")
    assert len(message) < 130


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("interleaved-1f1b -p 4 -m 6 -v 2", "or use --group-size 6 or 'flexible-interleaved'"),
        ("interleaved-1f1b -p 4 -m 10 -v 2", "or use --group-size 5 or 'flexible-interleaved'"),
        ("interleaved-1f1b -p 4 -m 3 -v 2", "is 4, or use 'flexible-interleaved'"),
        ("interleaved-1f1b -p 4 -m 4 -v 2 --group-size 5", "or use 'flexible-interleaved'"),
        ("interleaved-overlap -p 4 -m 6 -v 2", "is 4, or use --group-size 6"),
    ],
)
def test_a_refused_size_comes_with_what_takes_it(words: str, wanted: str) -> None:
    message = refused("simulate", *words.split())
    assert message.endswith(wanted)
    changed = words.split()
    if "'flexible-interleaved'" in wanted:
        simulated = CliRunner().invoke(app, ["simulate", "flexible-interleaved", *changed[1:]])
        assert simulated.exit_code == 0
    if "--group-size" in wanted and "--group-size" not in words:
        size = wanted.partition("--group-size ")[2].split()[0]
        simulated = CliRunner().invoke(app, ["simulate", *changed, "--group-size", size])
        assert simulated.exit_code == 0


def test_files_that_are_no_schedules_say_what_they_are(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert CliRunner().invoke(
        app, f"export 1f1b -p 2 -m 2 --to chrome-trace -o {trace}".split()
    ).exit_code == 0  # fmt: skip
    wanted = f"{trace} is a trace, not a schedule; 'debubble draw' and 'debubble serve' show it"
    assert refused("simulate", trace).startswith(wanted)
    trace.write_text(json.dumps([{"ph": "X", "name": "0F0"}]))
    assert refused("simulate", trace).startswith(wanted)
    assert "is a trace, not a schedule" in refused("check", "run.json.gz")
    costs = tmp_path / "costs.json"
    costs.write_text('{"times": {"F": 1}}')
    for path in (costs, "costs.yaml", "costs.toml"):
        assert refused("draw", path).endswith(
            f"is a cost file, not a schedule; name a schedule, and give it as --costs {path}"
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "optimize -p 2 -m 2 --seed -1",
            "--seed is '-1'; give a whole number from 0 to 999,",
        ),
        (
            "optimize -p 2 -m 2 --seed 99999999999",
            "--seed is '99999999999'; give a whole number f",
        ),
        ("optimize -p 2 -m 2 --workers -1", "--workers is '-1'; give a whole number from 1 to 256"),
        ("optimize -p 2 -m 2 --workers 0", "--workers is '0'; give a whole number from 1 to 256"),
        ("optimize -p 2 -m 2 --effort 1_0", "--effort is '1_0'; it is a positive number"),
        (
            "export 1f1b -p 2 -m 2 --to json -o x.csv",
            "-o 'x.csv' would be read as torch-csv, and --to is json; name it x.json",
        ),
        (
            "export 1f1b -p 2 -m 2 --to torch-csv -o x.json",
            "-o 'x.json' would be read as json, and --to is torch-csv; name it x.csv",
        ),
        ("run 1f1b -p 2 -m 2 --sleep 1e9", "--sleep is '1e9'; give a number of milliseconds above"),
        ("run 1f1b -p 2 -m 2 --timeout 1e6", "--timeout is '1e6'; give a number of seconds above"),
        ("run 1f1b -p 2 -m 2 --steps ٣", "--steps is '٣'; give a whole number from 0 to 999,999"),
        ("simulate 1f1b -p 2 -m 2 --memory 1_0", "--memory is '1_0'; the limit is a positive"),
        ("simulate vpp -p 2 -m 2 --group-size 1_0", "option group_size is '1_0'; give a value of"),
        ("simulate 1f1b -p 2 -m 2 --times F=٣", "--times: F is '٣'; give a number"),
    ],
)
def test_ranges_are_named_and_digits_are_plain(words: str, message: str) -> None:
    assert refused(*words.split()).startswith(message)


def test_an_empty_host_is_refused() -> None:
    assert refused("serve", "--host", "").startswith("--host is empty; give 127.0.0.1")


def test_conventions_fit_a_narrow_terminal() -> None:
    words = "simulate 1f1b -p 4 -m 8 --costs"
    path = Path(__file__).parents[1] / "examples" / "zero-bubble" / "gpt-6.2b-m24.yaml"
    result = CliRunner(env={"COLUMNS": "60"}).invoke(app, [*words.split(), str(path)])
    text = result.stdout.rpartition("\n\n")[2]
    assert max(map(len, text.splitlines())) <= 60
    assert "Zero Bubble" in text


ONE = db.make("1f1b", ranks=2, microbatches=4)
SIZES: dict[str, Any] = {"ranks": 2, "microbatches": 4}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: db.make("zb-v", **SIZES, memory="x"), "memory is 'x'; give a positive number, or"),
        (lambda: db.make("zb-v", **SIZES, memory={0: 1}), r"memory is \{0: 1\}; give a positive"),
        (lambda: db.make("zb-v", **SIZES, memory=[[1], [1, 2]]), "memory is .*; give a positive"),
        (lambda: db.make("zb-v", **SIZES, memory=[1, 2, 3]), "memory has 3 limits for 2 ranks"),
        (lambda: db.make("zb-v", **SIZES, costs={"F": 1}), r"costs is \{'F': 1\}; give debubble.C"),
        (lambda: db.make("zb-v", **SIZES, objective=3), "option objective is 3; give a value of"),
        (lambda: db.make("vpp", **SIZES, group_size="4"), "option group_size is '4'; give a value"),
        (lambda: db.make("vpp", **SIZES, group_size=[4]), r"option group_size is \[4\]; give a v"),
        (lambda: db.make(3, **SIZES), "name is 3; give a text"),  # type: ignore[arg-type]
        (lambda: db.check(ONE, memory="x"), "memory is 'x'; give a positive number"),  # type: ignore[arg-type]
        (lambda: db.check(ONE, p2p_mode=3), "p2p mode '3'; known: "),  # type: ignore[arg-type]
        (lambda: db.check("1f1b"), "schedule is '1f1b'; give a Schedule"),  # type: ignore[arg-type]
        (lambda: db.check(ONE, costs=3), "costs is 3; give debubble.Costs"),  # type: ignore[arg-type]
        (lambda: db.simulate("1f1b"), "schedule is '1f1b'; give a Schedule"),  # type: ignore[arg-type]
        (lambda: db.simulate(ONE, {"F": 1}), r"costs is \{'F': 1\}; give"),  # type: ignore[arg-type]
        (lambda: db.simulate(ONE, p2p_mode=3), "p2p mode '3'; known: "),  # type: ignore[arg-type]
        (lambda: db.simulate(ONE, p2p_mode=[]), r"p2p mode '\[\]'; known: "),  # type: ignore[arg-type]
        (lambda: db.compare(["1f1b"], **SIZES, costs=3), "costs is 3; give debubble.Costs"),
    ],
)
def test_arguments_of_wrong_types_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(db.DebubbleError, match=message):
        call()


def test_numbers_of_numpy_are_numbers() -> None:
    assert db.make("vpp", **SIZES, group_size=np.int64(4)).options["group_size"] == 4
    assert db.make("zb-v", **SIZES, memory=np.float32(2)).ranks == 2


def test_help_shows_the_parameters_of_optimize() -> None:
    text = pydoc.render_doc(db.optimize, renderer=pydoc.plaintext)
    for name in inspect.signature(db.optimize).parameters:
        assert f"        {name}: " in text, name
    assert "Limit for the activations of every rank" in text
