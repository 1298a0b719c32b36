"""The scripts in examples/train, with few steps on few ranks."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import runpy
import socket
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import debubble as db
from debubble.torch.models.build import from_config
from tests.torch.world import in_ranks, report_progress

pytest.importorskip("transformers", reason="trains models of transformers")

pytestmark = [pytest.mark.slow, pytest.mark.processes]

FOLDER = Path(__file__).parents[2] / "examples" / "train"
RANKS, STEPS, MICROBATCHES = 2, 5, 4


PROGRAMS = {"llama": "zb-v", "qwen3-moe": "best.csv", "gpt2": "dualpipe-v"}
"""Models that the script trains, and by which schedule."""


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """The script that trains, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("train")
    for name in ("data", "models", "train"):
        sys.modules.pop(name, None)


def as_torchrun(rank: int, port: int, script: str, *words: object) -> str:
    """What a script prints in this process, which torchrun might have started."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    sys.argv = [script, *map(str, words)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(FOLDER / script), run_name="__main__")
    report_progress()
    return printed.getvalue()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what every script saved or printed: ranks import transformers once for all."""
    folder = tmp_path_factory.mktemp("trained")
    db.optimize(
        ranks=RANKS, chunks=2, microbatches=MICROBATCHES, effort=0.01, cache=False
    ).schedule.save(folder / "best.csv")
    db.make("zb-v", ranks=RANKS, microbatches=8).save(folder / "zbv.csv")
    ports = free_ports(len(PROGRAMS) + 2)

    def load() -> None:
        sys.path.insert(0, str(FOLDER))
        build = importlib.import_module("models").build
        for model in PROGRAMS:
            build(model, torch.float64)

    def work(rank: int) -> str:
        os.chdir(folder)
        dist.destroy_process_group()
        for (model, schedule), port in zip(PROGRAMS.items(), ports, strict=False):
            as_torchrun(
                rank, port, "train.py", "--schedule", schedule, "--model", model, "--steps", STEPS,
                "--microbatches", MICROBATCHES, "--clip", 1.0, "--dtype", "float64", "--save",
                f"{model}.pt",
            )  # fmt: skip
        printed = as_torchrun(rank, ports[-2], "plain_torch.py", "zbv.csv", 1)
        os.environ["MASTER_PORT"] = str(ports[-1])
        dist.init_process_group("gloo")
        return printed

    (folder / "plain_torch").write_text("".join(in_ranks(RANKS, work, load=load)))
    return folder


@pytest.mark.parametrize("model", PROGRAMS)
def test_a_pipeline_trains_as_the_model_alone(scripts: Any, trained: Path, model: str) -> None:
    found = torch.load(trained / f"{model}.pt")
    options = Namespace(steps=STEPS, microbatches=MICROBATCHES, clip=1.0, rate=1e-3, device="cpu")
    expected, parameters = scripts.without_pipeline(scripts.build(model, torch.float64), options)
    assert expected[-1] < expected[0]
    torch.testing.assert_close(found["losses"], expected, rtol=0, atol=1e-9)
    assert found["state"].keys() == parameters.keys()
    for name, value in parameters.items():
        torch.testing.assert_close(found["state"][name], value, rtol=0, atol=1e-9, msg=name)


def test_pytorch_trains_with_our_order(trained: Path) -> None:
    printed = (trained / "plain_torch").read_text().split()
    assert printed[:2] == ["step", "0"]
    assert float(printed[3]) == pytest.approx(5.55, abs=0.1)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_configs_can_be_profiled(path: Path) -> None:
    made, _ = from_config(str(path), 4, rows=2)
    assert made.data(0)[0].shape == (2, 64)
    assert len(made.stages) == 4
