"""Law of effect: an option of a command changes what it prints, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from debubble.cli.app import app
from debubble.sweeps import run, spec_of
from tests.command import call

LINES = (
    "schedules", "schedules 1f1b", "schedules 1f1b --bibtex", "schedules --from-template {new}.py",
    "costs", "costs {costs}", "costs --init", "check 1f1b -p 2 -m 2",
    *(f"export 1f1b -p 2 -m 2 --to {to}"
      for to in ("torch-csv", "torch-csv-comms", "json", "chrome-trace", "megatron")),
    "sweep {spec} --dry-run", "sweep {results}",
)  # fmt: skip

IDLE = {"--unchecked": "writes faulty schedules, too", "--torchtitan": "the default, in words"}
"""Options that may change nothing, and why."""

SAMPLES = {
    "--jobs": "2", "--backend": "dask", "--address": "x:1", "--title": "A title", "--cut": "1/1",
    "--output": "{new}.yaml",
}  # fmt: skip
"""Values of options that are no switches."""


def options(name: str) -> Iterator[list[str]]:
    """Switches of a command, and its options that have a sample."""
    context: Any = None
    for option in typer.main.get_command(app).get_command(context, name).params:  # type: ignore[attr-defined]
        flags = [*option.opts, *option.secondary_opts]
        for flag in flags if getattr(option, "is_flag", False) else flags[-1:]:
            if flag.startswith("--") and flag not in ("--help", *IDLE):
                if getattr(option, "is_flag", False):
                    yield [flag]
                elif flag in SAMPLES:
                    yield [flag, SAMPLES[flag]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("laws")
    costs, spec = folder / "costs.yaml", folder / "sweep.yaml"
    costs.write_text("times: {F: 1, B: 2}\n")
    grid = "{ranks: [2, 3], microbatches: [2]}"
    spec.write_text(f"command: simulate\noptions: {{schedule: 1f1b}}\ngrid: {grid}\n")
    data = {"command": "simulate", "options": {"schedule": "1f1b", "microbatches": 2},
            "grid": {"ranks": [2, 3]}}  # fmt: skip
    run(spec_of(data), folder / "x.sqlite", jobs=1)
    return {"costs": costs, "spec": spec, "results": folder / "x.sqlite", "folder": folder}


@pytest.mark.parametrize("line", LINES)
def test_an_option_does_something_or_is_refused(line: str, places: dict[str, Any]) -> None:
    folder: Path = places["folder"]

    def result(*more: str) -> tuple[int, str, str]:
        """Answer of a line with a new name for every file that it writes."""
        new = folder / str(len(list(folder.iterdir())))
        found = call(*(word.format(new=new, **places) for word in (*line.split(), *more)))
        return found.code, found.out.replace(str(new), "NEW"), found.err.replace(str(new), "NEW")

    usual = result()
    assert usual[0] == 0, usual
    tried = 0
    for words in options(line.split()[0]):
        if words[0] in line:
            continue
        tried += 1
        found = result(*words)
        if found[0] == 2:
            flag = words[0].lstrip("-")
            assert flag in found[2] or f"-{flag[0]}" in found[2], (words, found[2])
        else:
            assert found != usual, f"{' '.join(words)} does nothing next to {line}"
    assert tried


def test_costs_of_a_what_if_are_not_written_as_if_measured() -> None:
    refused = call("trace", "run.json", "--set", "p2p=0", "--costs-out", "x.yaml")
    assert refused.code == 2
    assert "--set does not change" in refused.err


def test_a_search_lists_no_option_that_it_refuses() -> None:
    listed = call("optimize", "--help").out
    for flag in ("--iterations", "--sync", "--option", "--group-size"):
        assert flag not in listed
        assert f"{flag} is for published schedules" in call("optimize", flag, "2").err


def test_the_basis_of_costs_without_times_is_the_one_in_words(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text("times: {p2p: 0.1}\n")
    assert "per rank" in call("costs", path).out
    assert call("costs", path, "--json").data["basis"] == "rank"
