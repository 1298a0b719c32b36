"""Law of the same question: a sweep finds the plan that the command finds."""

from __future__ import annotations

import pytest

from debubble.sweeps import commands
from tests.command import call

ASKED = {"model": "llama-3.1-8b", "gpu": "h100", "gpus": 8, "batch": 16, "seq": 4096}
HELD = {"pp": 4, "cp": 1, "microbatch_size": 1, "recompute": "none"}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_a_sweep_finds_the_plan_of_the_command(schedule: str) -> None:
    (row,) = commands.COMMANDS["plan"].run({**ASKED, **HELD, "schedules": [schedule]})
    options = {**ASKED, **HELD, "schedule": schedule}
    del options["model"]
    words = [word for key, value in options.items()
             for word in (f"--{key.replace('_', '-')}", str(value))]  # fmt: skip
    best = call("plan", ASKED["model"], *words, "--json").data["plans"][0]
    assert row["step_time"] == pytest.approx(best["step_time"], rel=1e-12)
    assert {key: row[key] for key in best["degrees"]} == best["degrees"]
    assert row["schedule"] == best["schedule"]
