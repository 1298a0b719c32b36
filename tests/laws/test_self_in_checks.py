"""What a check refuses, nothing hands on or runs, and simulations refuse or note it."""

from __future__ import annotations

import json
import sys
from dataclasses import make_dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from debubble.cli.app import app
from debubble.engine.modes import MODE, P2P_MODES
from debubble.engine.timeline import simulate
from debubble.interchange.files import load, save
from debubble.lowering.transfers import TRANSFER_POLICIES
from debubble.schedules.registry import Entry, find
from tests.conftest import EXPLORES
from tests.pairs import sorts
from tests.small import smallest

SETTINGS = make_dataclass(
    "Settings",
    ["model", "verify", "steps", "sleep", "costs", "runtime", "timeout", "device", "dtype"],
)
NOTED = "'debubble check' refuses it"


def command(*words: object) -> tuple[int, str]:
    """Exit code and output of a command in this process."""
    result = CliRunner(env={"DEBUBBLE_DEBUG": "1"}).invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``run`` end where it would start processes."""
    stub: Any = ModuleType("debubble.torch.run.run")
    stub.Settings, stub.run = SETTINGS, lambda _made, _settings: None
    monkeypatch.setitem(sys.modules, "debubble.torch.run.run", stub)
    monkeypatch.setattr("debubble.cli.run.require_torch", lambda: None)


def verdicts(words: list[Any], folder: Path) -> dict[str, bool]:
    """Whether each command accepts a schedule and says nothing against it."""
    to_file = ("--to", "json", "-o", folder / "exported.json")
    lines = {"check": (), "export": to_file, "run": ()}
    found = {name: command(name, *words, *more)[0] == 0 for name, more in lines.items()}
    for name, more in (("export", to_file), ("run", ())):
        assert command(name, *words, *more, "--unchecked")[0] == 0, name
    for name in ("simulate", "compare"):
        code, out = command(name, *words, "--json")
        data = {} if code else json.loads(out)
        refused = code or data.get("skipped") or any(NOTED in note for note in data["notes"])
        found[name] = not refused
    return found


def questions() -> list[Any]:
    """Schedules of all sorts, with transfers as every policy places them, in every mode.

    Each sort meets every mode and every policy, and each policy meets every mode; all three
    together to explore.
    """
    rows, modes = [], (None, *P2P_MODES)
    policies = len(TRANSFER_POLICIES)
    for turn, families in enumerate(sorts().values()):
        for number, (policy, mode) in enumerate(product(TRANSFER_POLICIES, modes)):
            place, column = divmod(number, len(modes))
            if not EXPLORES and (place - column - turn) % policies:
                continue
            entry = families[number % len(families)]
            quick = mode is None and place == turn % policies
            marks = () if quick else pytest.mark.slow
            name = f"{entry.name}-{policy}-{mode}"
            rows.append(pytest.param(entry, policy, mode, id=name, marks=marks))
    return rows


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(("entry", "policy", "mode"), questions())
def test_every_command_has_the_verdict_of_the_check(
    entry: Entry, policy: str, mode: str | None, tmp_path: Path
) -> None:
    schedule = smallest(entry)
    words = [entry.name, "-p", schedule.ranks, "-m", schedule.microbatches, "--transfers", policy]
    found = verdicts(words if mode is None else [*words, "--p2p-mode", mode], tmp_path)
    if mode is not None and MODE[mode].receives is None:
        # Who asks about one mode gets its verdict; notes of simulations are of all.
        found = {name: found[name] for name in ("check", "export", "run")}
    assert len(set(found.values())) == 1, found


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("missing", ["0W0", "0I3", "1F2"])
def test_what_lacks_an_action_is_refused(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    save(smallest(find("zb-h1")), path)
    data = json.loads(path.read_text())
    for row in data["programs"]:
        if missing in row:
            row.remove(missing)
    path.write_text(json.dumps(data))
    assert command("check", path)[0] == 1
    lines = {"export": ("--to", "json"), "run": (), "simulate": (), "compare": (), "draw": ()}
    for name, more in lines.items():
        assert command(name, path, *more)[0] == 2, name
    if missing == "0W0":
        assert any("lacks backwards" in note for note in simulate(load(path)).notes)
