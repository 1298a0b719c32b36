"""SIGKILL at any moment: no process stays, and training goes on where a checkpoint is."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import debubble.torch as dt
from tests.conftest import EXPLORES
from tests.forkserver import forked, serve
from tests.patience import patience
from tests.torch.loop import mlp, vectors

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SOON = 20.0
"""Seconds in which every process of a session has to be gone, on a quiet machine."""


def in_session(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(place.name))
    return found


def gone(session: int) -> bool:
    """Whether all processes of a session end; those that do not are ended here."""
    end = time.monotonic() + patience(SOON)
    while time.monotonic() < end:
        left = in_session(session)
        if not left:
            return True
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return False


def command(words: list[str], folder: str) -> None:
    """A command in a session of its own, which works in a folder and says nothing."""
    from debubble.cli import main

    os.setsid()
    os.chdir(folder)
    tempfile.tempdir = folder
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    sys.argv = ["debubble", *words]
    main()


RUN = ["run", "zb-v", "-p", "2", "-m", "4", "--steps", "2", "--model", "mlp", "--trace",
       "run.json.gz", "--costs-out", "costs.yaml"]  # fmt: skip


TRIES = 4 if EXPLORES else 2
"""Runs that are killed: each of them loads PyTorch."""


def begun(folder: Path) -> Any:
    process = forked.Process(target=command, args=(RUN, str(folder)))
    process.start()
    return process


def test_run(tmp_path: Path) -> None:
    trace, costs = tmp_path / "run.json.gz", tmp_path / "costs.yaml"
    serve()
    began = time.monotonic()
    process = begun(tmp_path)
    process.join()
    usual = time.monotonic() - began
    assert process.exitcode == 0
    assert trace.exists()
    chance = random.Random("run")
    tries = hits = 0
    while tries < TRIES or (not hits and tries < 40):
        trace.unlink(missing_ok=True)
        costs.unlink(missing_ok=True)
        process = begun(tmp_path)
        time.sleep(chance.uniform(0, 1.05) * usual)
        process.kill()
        process.join()
        tries += 1
        hits += process.exitcode != 0
        assert gone(process.pid)
        # Files are whole or not there.
        assert not trace.exists() or json.loads(gzip.decompress(trace.read_bytes()))
        assert not costs.exists() or costs.read_text().endswith("\n")
    assert hits


STEPS = 12


def train(rank: int, folder: str, port: str) -> None:
    """Train on one rank, from its checkpoint on where there is one."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    dist = torch.distributed
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/{port}", 2), rank=rank, world_size=2
    )
    pipe = dt.Pipeline("zb-v", mlp(4), functional.mse_loss, microbatches=4)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    # Ranks may be killed between their files: the last step that both have counts.
    saved = [read(folder, one) for one in range(2)]
    begin = min(len(state["losses"]) for state in saved)
    state = saved[rank] if len(saved[rank]["losses"]) == begin else saved[rank]["before"]
    losses = list(state["losses"])
    if losses:
        pipe.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    before: dict[str, Any] = state | {"before": None}
    for step in range(begin, STEPS):
        x, y = vectors(4, step)
        losses.append(pipe.step(x, target=y).item())
        optimizer.step()
        optimizer.zero_grad()
        now = {
            "losses": list(losses), "model": pipe.state_dict(),
            "optimizer": optimizer.state_dict(), "before": before,
        }  # fmt: skip
        part = f"{folder}/{rank}.part"
        torch.save(now, part)
        os.replace(part, f"{folder}/{rank}.pt")
        before = torch.load(f"{folder}/{rank}.pt") | {"before": None}
    dist.barrier()
    os._exit(0)


def read(folder: str, rank: int) -> dict[str, Any]:
    path = Path(folder, f"{rank}.pt")
    found: dict[str, Any] = torch.load(path) if path.exists() else {"losses": []}
    return found


def ranks(folder: Path, number: int) -> list[Any]:
    found = [forked.Process(target=train, args=(rank, str(folder), f"store{number}"))
             for rank in range(2)]  # fmt: skip
    for process in found:
        process.start()
    return found


def finished(processes: list[Any]) -> list[int]:
    for process in processes:
        process.join(patience(120))
    return [process.exitcode for process in processes]


def test_training(tmp_path: Path) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    calm.mkdir()
    rough.mkdir()
    serve()
    began = time.monotonic()
    assert finished(ranks(calm, 0)) == [0, 0]
    usual = time.monotonic() - began
    chance, tries, kills, codes = random.Random("train"), 0, 0, [1, 1]
    while codes != [0, 0]:
        processes = ranks(rough, tries)
        tries += 1
        if kills < 4:
            time.sleep(chance.uniform(0.3, 0.9) * usual)
            # Both, or one: the other then ends by itself, or is ended with it by a launcher.
            for process in chance.sample(processes, 2):
                process.kill()
                time.sleep(chance.choice((0.0, 0.01)))
        codes = finished(processes)
        kills += codes != [0, 0]
        if codes == [0, 0] and kills < 2:
            # It was faster than usual, and at its end before.
            usual /= 2
            for path in rough.glob("*.pt"):
                path.unlink()
            codes = [1, 1]
    for rank in range(2):
        assert read(str(rough), rank)["losses"] == read(str(calm), rank)["losses"]
        assert len(read(str(rough), rank)["losses"]) == STEPS
