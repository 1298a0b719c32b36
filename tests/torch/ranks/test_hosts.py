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
from typing import NamedTuple

import pytest

from tests.missing import missing
from tests.patience import patience

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

HOST = """
import gc, os, sys
from debubble.cli.app import app
import debubble.torch.engine.own_engine, debubble.torch.pytorch.engine

gc.freeze()  # what is not looked at for garbage is not copied
for number, words in enumerate(" ".join(sys.argv[2:]).split(" and ")):
    ranks = []
    for rank in map(int, sys.argv[1].split(",")):
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank % 2), MASTER_PORT=str(29500 + number)
            )
            for stream, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{number}.{rank}.{name}", os.O_WRONLY | os.O_CREAT), stream)
            app(words.split(), prog_name="debubble")
    print(*[os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks])
"""
"""Runs commands, which load PyTorch once, as each rank of a host; prints how those end."""


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

    def start(self, number: int, folder: Path, *words: object) -> subprocess.Popen[str]:
        world = {
            "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "10.77.0.1",
            "GLOO_SOCKET_IFNAME": self.cables[number],
        }  # fmt: skip
        ranks = f"{2 * number},{2 * number + 1}"
        command = [sys.executable, "-c", HOST, ranks, *map(str, words)]
        named = 'hostname "$0"; exec "$@"'
        return subprocess.Popen(
            [*self._inside(number), "sh", "-c", named, self.names[number], *command],
            env=os.environ | {key: str(value) for key, value in world.items()},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip

    def cut(self) -> None:
        _command("ip", "-n", self.names[1], "link", "set", self.cables[1], "down")


@pytest.fixture(scope="module")
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


class Ran(NamedTuple):
    """Exit code and output of every rank, of a run to its end and of one with a cable that is cut,
    and the seconds after which that is noticed."""

    whole: list[tuple[int, str, str]]
    cut: list[tuple[int, str, str]]
    limit: int


@pytest.fixture(scope="module")
def ran(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "model.py").write_text(MODEL)
    limit = round(patience(3))
    words = (
        "run", "dualpipe", "-p", 4, "-m", 8, "--sleep", 20, "--steps", 3, "--json", "and",
        "run", "1f1b", "-p", 4, "-m", 8, "--model", "model.py:build", "--no-verify", "--steps", 200,
        "--timeout", limit,
    )  # fmt: skip
    both = [hosts.start(number, folder, *words) for number in range(2)]
    while not (folder / "running").exists() and all(host.poll() is None for host in both):
        time.sleep(0.1)
    hosts.cut()
    outputs = [host.communicate(timeout=patience(300)) for host in both]
    assert [error for _, error in outputs] == ["", ""]
    lines = [[line.split() for line in out.splitlines()] for out, _ in outputs]
    found = []
    for number in range(2):
        codes = [int(code) for host in lines for code in host[number]]
        out, err = (
            [(folder / f"{number}.{rank}.{name}").read_text() for rank in range(4)]
            for name in ("out", "err")
        )
        found.append(list(zip(codes, out, err, strict=True)))
    return Ran(*found, limit)


def test_clocks_that_are_apart(ran: Ran) -> None:
    assert [code for code, _, _ in ran.whole] == [0] * 4, ran.whole
    report = json.loads(ran.whole[0][1])
    assert [out for _, out, _ in ran.whole[1:]] == [""] * 3
    assert report["verification"]["equal"]
    # With clocks that are not set to one another a step would last five days.
    assert 0.4 < report["measured"]["makespan"] < APART / 2


def test_a_cable_that_is_cut_ends_the_run_on_both_hosts(ran: Ran) -> None:
    errors = [error for _, _, error in ran.cut]
    assert [code for code, _, _ in ran.cut] == [2] * 4, errors
    near, far = "".join(errors[:2]), "".join(errors[2:])
    assert f"debubble: nothing has moved for {ran.limit}" in near
    assert f"lost the store: no answer for {ran.limit}" in far
