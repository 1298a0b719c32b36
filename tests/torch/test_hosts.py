"""A world on two hosts: network namespaces with clocks of their own, joined by a cable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.missing import missing

APART = 500_000
"""Seconds between the monotonic clocks of the hosts."""

pytestmark = pytest.mark.processes

MODEL = """
import pathlib, time, torch

class Layer(torch.nn.Linear):
    def forward(self, x):
        if torch.distributed.is_initialized():
            pathlib.Path("running").touch()
            time.sleep(0.2)
        return super().forward(x)

def build(stages):
    data = lambda u: (torch.ones(1, 4), torch.zeros(1, 4))
    return [Layer(4, 4) for _ in range(stages)], torch.nn.functional.mse_loss, data
"""


def _command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


class Hosts:
    """Two hosts of two ranks each."""

    def __init__(self) -> None:
        self.names = [f"debubble-{os.getpid()}-{number}" for number in range(2)]
        self.cables = [f"db{os.getpid()}{end}" for end in "ab"]

    def build(self) -> None:
        for name in self.names:
            _command("ip", "netns", "add", name)
        first, second = self.names
        a, b = self.cables
        _command("ip", "link", "add", a, "netns", first, "type", "veth", "peer", b, "netns", second)
        for number, (name, cable) in enumerate(zip(self.names, self.cables, strict=True)):
            _command("ip", "-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", cable)
            for device in ("lo", cable):
                _command("ip", "-n", name, "link", "set", device, "up")
        _command(*self._inside(1), "true")

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _inside(self, number: int) -> list[str]:
        clock = ["--time", "--monotonic", str(APART * number), "--fork", "--kill-child"]
        return ["ip", "netns", "exec", self.names[number], "unshare", "--uts", *clock]

    def start(self, rank: int, folder: Path, *words: object) -> subprocess.Popen[str]:
        number = rank // 2
        world = {
            "RANK": rank, "LOCAL_RANK": rank % 2, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2,
            "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": 29500,
            "GLOO_SOCKET_IFNAME": self.cables[number],
        }  # fmt: skip
        command = [sys.executable, "-m", "debubble", "run", *map(str, words)]
        named = 'hostname "$0"; exec "$@"'
        return subprocess.Popen(
            [*self._inside(number), "sh", "-c", named, self.names[number], *command],
            env=os.environ | {key: str(value) for key, value in world.items()},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip

    def cut(self) -> None:
        _command("ip", "-n", self.names[1], "link", "set", self.cables[1], "down")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        missing("needs ip and unshare")
    made = Hosts()
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as error:
            missing(f"network namespaces cannot be made: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


def test_clocks_that_are_apart(hosts: Hosts, tmp_path: Path) -> None:
    words = ("dualpipe", "-p", 4, "-m", 8, "--sleep", 20, "--steps", 3, "--json")
    ranks = [hosts.start(rank, tmp_path, *words) for rank in range(4)]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, outputs
    report = json.loads(outputs[0][0])
    assert [out for out, _ in outputs[1:]] == [""] * 3
    assert report["verification"]["equal"]
    # With clocks that are not set to one another a step would last five days.
    assert 0.4 < report["measured"]["makespan"] < 60


def test_a_cable_that_is_cut_ends_the_run_on_both_hosts(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    words = ("1f1b", "-p", 4, "-m", 8, "--model", "model.py:build", "--no-verify", "--steps", 200)
    ranks = [hosts.start(rank, tmp_path, *words, "--timeout", 5) for rank in range(4)]
    while not (tmp_path / "running").exists() and all(rank.poll() is None for rank in ranks):
        time.sleep(0.1)
    hosts.cut()
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2] * 4, errors
    near, far = "".join(errors[:2]), "".join(errors[2:])
    assert "debubble: nothing has moved for 5" in near
    assert "lost the store: no answer for 5" in far
