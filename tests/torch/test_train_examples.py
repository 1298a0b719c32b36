"""The scripts in examples/train, with few steps on few ranks."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import debubble as db
from debubble.torch.models.build import from_config
from tests.torch.world import in_ranks

pytest.importorskip("transformers", reason="trains models of transformers")

pytestmark = [pytest.mark.slow, pytest.mark.processes]

FOLDER = Path(__file__).parents[2] / "examples" / "train"
RANKS, STEPS, MICROBATCHES = 2, 5, 4
LIMIT = 300
"""Seconds."""


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script that trains, as a module."""
    names = ("data", "models", "train", "plain_torch")
    monkeypatch.syspath_prepend(FOLDER)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("train")
    for name in names:
        sys.modules.pop(name, None)


def torchrun(script: str, *words: object) -> str:
    """What a script prints on the ranks that torchrun starts."""
    found = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
            "--standalone", str(FOLDER / script), *map(str, words),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


def has_its_world(script: Any) -> None:
    """The world is there, and goes when the rank does."""
    for name in ("init_process_group", "destroy_process_group"):
        setattr(script.dist, name, lambda *_: None)


def in_forks(scripts: Any, model: str, schedule: str) -> Any:
    """Losses and parameters as the script has them on ranks that import nothing anew."""
    args = options(schedule=schedule, chunks=None, engine="auto")

    def work(_: int) -> Any:
        has_its_world(scripts)
        return scripts.in_pipeline(scripts.build(model, torch.float64), args)

    return in_ranks(RANKS, work)[0]


def options(**more: Any) -> Namespace:
    return Namespace(
        steps=STEPS, microbatches=MICROBATCHES, clip=1.0, rate=1e-3, device="cpu", **more
    )


def assert_as_alone(scripts: Any, model: str, losses: Any, state: Any) -> None:
    """What a pipeline found is what the model without one does."""
    expected, parameters = scripts.without_pipeline(scripts.build(model, torch.float64), options())
    assert expected[-1] < expected[0]
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-9)
    assert state.keys() == parameters.keys()
    for name, value in parameters.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize(("model", "schedule"), [("llama", "zb-v"), ("qwen3-moe", "best.csv")])
def test_a_pipeline_trains_as_the_model_alone(
    scripts: Any, model: str, schedule: str, tmp_path: Path
) -> None:
    if schedule.endswith(".csv"):
        schedule = str(tmp_path / schedule)
        db.optimize(
            ranks=RANKS, chunks=2, microbatches=MICROBATCHES, effort=0.01, cache=False
        ).schedule.save(schedule)
    assert_as_alone(scripts, model, *in_forks(scripts, model, schedule))


def test_torchrun_trains_as_the_model_alone(scripts: Any, tmp_path: Path) -> None:
    saved = tmp_path / "run.pt"
    torchrun(
        "train.py", "--schedule", "dualpipe-v", "--model", "gpt2", "--steps", STEPS,
        "--microbatches", MICROBATCHES, "--clip", 1.0, "--dtype", "float64", "--save", saved,
    )  # fmt: skip
    found = torch.load(saved)
    assert_as_alone(scripts, "gpt2", found["losses"], found["state"])


def test_pytorch_trains_with_our_order(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "zbv.csv"
    db.make("zb-v", ranks=RANKS, microbatches=8).save(path)
    script = importlib.import_module("plain_torch")

    def work(_: int) -> str:
        has_its_world(script)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            script.main(path, 1)
        return printed.getvalue()

    printed = "".join(in_ranks(RANKS, work)).split()
    assert printed[:2] == ["step", "0"]
    assert float(printed[3]) == pytest.approx(5.55, abs=0.1)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_configs_can_be_profiled(path: Path) -> None:
    made = from_config(str(path), 4, rows=2)
    assert made.x.shape == (2, 64)
    assert len(made.stages) == 4
