"""``debubble run``: real processes behind the command line."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.interchange.cost_files import load_costs
from tests import forkserver
from tests.contracts import follows_its_contract
from tests.missing import missing
from tests.patience import patience

pytest.importorskip("torch", reason="runs schedules on PyTorch; install torch")

pytestmark = pytest.mark.processes  # the command begins with the process that ranks are copies of

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def test_gradients_and_times(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    result = run(
        "run", "zb-h1", "-p", 2, "-m", 4, "--sleep", 10, "--steps", 3, "--trace", path, "--json"
    )
    assert (result.code, result.err) == (0, f"wrote {path}\n")
    data = result.data
    follows_its_contract("run", data)
    assert (data["runtime"], data["model"], data["sleep"]) == ("torch", "gpt-tiny", 0.01)
    verification = data["verification"]
    assert verification["equal"]
    assert verification["relative_error"] < 1e-12
    assert verification["loss"] == pytest.approx(verification["reference_loss"], rel=1e-12)
    # Every action takes at least as long as it sleeps: 4 · 3 actions and one F and one I outside.
    assert data["measured"]["makespan"] >= 0.13
    assert data["predicted"]["makespan"] >= 0.13
    assert len(data["measured"]["makespans"]) == data["steps"] == 3
    assert data["overhead"] > 0
    schedule = db.make("zb-h1", ranks=2, microbatches=4)
    assert [action[:2] for action in data["actions"]] == [
        [rank, str(action)] for rank, program in enumerate(schedule) for action in program
    ]
    trace = json.loads(gzip.decompress(path.read_bytes()))
    names = [event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "process_name"]  # fmt: skip
    assert names == [f"{group} · rank {r}" for group in ("predicted", "measured") for r in (0, 1)]
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 2 * len(schedule)
    assert all(event["dur"] >= 10_000 for event in slices)


@pytest.mark.parametrize("name", ["zb-h1", "dualpipe", "vocab-2"])
def test_measured_costs_are_what_other_commands_take(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "costs.yaml"
    words = (name, "-p", 2, "-m", 4)
    result = run("run", *words, "--no-verify", "--steps", 2, "--costs-out", path, "--json")
    assert result.code == 0
    assert f"wrote {path}; try: debubble optimize --costs {path}" in result.err
    costs = load_costs(path).costs
    assert costs.launch == pytest.approx(1e3 * result.data["overhead"], abs=1e-6)
    assert costs.p2p == 0 or costs.launch == 0
    simulated = run("simulate", *words, "--costs", path, "--json")
    assert simulated.code == 0
    assert simulated.data["makespan"] > 0


def test_a_model_of_the_user(run: Run) -> None:
    model = f"{ROOT / 'examples' / 'model.py'}:build"
    result = run("run", "dualpipe", "-p", 2, "-m", 4, "--model", model, "--steps", 0)
    assert result.code == 0
    assert "build on debubble's executor" in result.out
    assert "gradients   all 56 equal" in result.out
    assert "predicted" not in result.out


def test_wrong_gradients_are_found(run: Run, tmp_path: Path) -> None:
    """A stage that computes something else in another process."""
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "from multiprocessing import parent_process\n"
        "class Layer(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) * (1 if parent_process() is None else 1 + 1e-6)\n"
        "def build(stages):\n"
        "    data = lambda u: (torch.ones(1, 4) * u, torch.zeros(1, 4))\n"
        "    modules = [Layer(4, 4) for _ in range(stages)]\n"
        "    return modules, torch.nn.functional.mse_loss, data\n"
    )
    result = run("run", "1f1b", "-p", 2, "-m", 2, "--model", f"{path}:build", "--steps", 0)
    assert result.code == 1
    assert "gradients   NOT EQUAL: largest error" in result.out
    assert "in weight of stage 1, iteration 0" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "gpt"], "unknown model 'gpt'; known: gpt-tiny, mlp\na model of"),
        (["--runtime", "pytorch"], "runtime is 'pytorch'; did you mean 'torch'?"),
        (["--device", "gpu"], "device is 'gpu'; did you mean 'cpu'?"),
        (["--sleep", "0"], "--sleep is '0'; give a number of milliseconds above 0"),
        (["--timeout", "no"], "--timeout is 'no'; give a number of seconds above 0"),
        (["--steps", "-1"], "--steps is '-1'; give a whole number from 0 to"),
        (["--trace", "x.png"], "--trace 'x.png': traces end in .json or .json.gz"),
        (["--trace", "x.json", "--steps", "0"], "--trace needs measured steps"),
        (["--costs-out", "x.png"], "--costs-out 'x.png': a cost file is written as .yaml or .json"),
        (["--costs-out", "x.yaml", "--steps", "0"], "--costs-out needs measured steps"),
        (["--dtype", "float8"], "dtype is 'float8'; did you mean"),
        (["--sleep", "9", "--times", "F=1,p2p=1"], "transfers of a real run take the time they"),
        (["--sleep", "9", "--times", "F=0,B=0"], "all times are 0; give some with --times"),
        (["--model", "nowhere.py:build"], "there is no file 'nowhere.py'"),
        (
            ["--iterations", "2", "--runtime", "torch"],
            "PyTorch's runtime cannot run '1f1b': it has",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(refused: Run, words: list[str], message: str) -> None:
    assert refused("run", "1f1b", "-p", 2, "-m", 2, *words).startswith(message)


def test_what_a_model_must_return(refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("def none(stages): pass\ndef few(stages): return [], None, None\n")
    for name, message in (
        ("none", "none returned NoneType; return (stages, loss, data)"),
        ("few", "few returned 0 stages; 2 are asked for"),
    ):
        assert refused("run", "1f1b", "-p", 2, "-m", 2, "--model", f"{path}:{name}") == message


def test_a_schedule_is_checked_first(refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n")
    message = refused("run", path)
    assert "0B1" in message
    assert "--unchecked runs it all the same" in message


def test_without_pytorch(refused: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    message = refused("run", "1f1b", "-p", 2, "-m", 2)
    assert message == "running needs PyTorch; pip install 'debubble[run]'"


def children(pid: int) -> list[Path]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path("/proc", child) for child in found]


def ranks_of(pid: int) -> list[Path]:
    """The ranks of a command: its server's children."""
    with suppress(OSError):
        return [rank for child in children(pid) for rank in children(int(child.name))]
    return []


def leaves_interrupts(process: Path) -> bool:
    """Whether a process ignores Ctrl-C."""
    (ignored,) = re.findall(r"SigIgn:\s*(\w+)", (process / "status").read_text())
    return bool(int(ignored, 16) & 1 << signal.SIGINT - 1)


def works(folder: Path) -> bool:
    """Whether a rank has reported progress."""
    return any(any(table.read_bytes()) for table in folder.glob("debubble-*/progress"))


class InFork:
    """The command in a process that has loaded PyTorch, which takes seconds."""

    def __init__(self, folder: Path, *words: object, **env: object) -> None:
        self._streams = [Path(tempfile.mkstemp(dir=folder)[1]) for _ in range(2)]
        self._process = forkserver.forked.Process(
            target=_command, args=(folder, self._streams, list(map(str, words)), env)
        )
        self._process.start()
        self.pid = self._process.pid

    def send_signal(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)

    def communicate(self) -> tuple[str, str]:
        self._process.join()
        self.returncode = self._process.exitcode
        out, err = (stream.read_text() for stream in self._streams)
        return out, err


def _command(folder: Path, streams: list[Path], words: list[str], env: dict[str, object]) -> None:
    from debubble.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_WRONLY), number)
    os.environ.update({key: str(value) for key, value in env.items()})
    tempfile.tempdir = None
    os.chdir(folder)
    sys.argv = ["debubble", *words]
    sys.exit(main())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(
    how: signal.Signals, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not Path("/proc/self/task").exists():
        missing("processes are looked up in /proc")
    words = ("run", "1f1b", "-p", 3, "-m", 3, "--sleep", 60_000)
    process = InFork(tmp_path_factory.mktemp("out"), *words, TMPDIR=tmp_path)
    end = time.monotonic() + patience(120)
    while len(found := ranks_of(process.pid)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(found) == 3
    found += children(process.pid)
    # Ranks that work have met: the command knows them all.
    while not (all(map(leaves_interrupts, found[:3])) and works(tmp_path)):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(how)
    _, err = process.communicate()
    if how == signal.SIGINT:
        assert (process.returncode, err) == (130, "debubble: interrupted\n")
        assert not any(rank.exists() for rank in found[:3])
    if how != signal.SIGKILL:
        assert list(tmp_path.glob("debubble-*")) == []
    if how == signal.SIGTERM:
        assert process.returncode == 128 + how
    while any(child.exists() for child in found):
        assert time.monotonic() < end
        time.sleep(0.05)


def joined(
    tmp_path: Path, *words: object, size: int = 2, profiled: bool = False
) -> list[tuple[int, str, str]]:
    """Exit code and output of every rank of a world as torchrun starts it.

    A first rank that is `profiled` is a new process, and says what it imports.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes: list[Any] = []
    for rank in range(size):
        world = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        if rank > 0 or not profiled:
            processes.append(InFork(tmp_path, "run", *words, **world))
            continue
        env = {key: str(value) for key, value in world.items()} | {"PYTHONPROFILEIMPORTTIME": "1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "debubble", "run", *map(str, words)], env=os.environ | env,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            )
        )  # fmt: skip
    outputs = [process.communicate() for process in processes]
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def test_a_world_of_torchrun(tmp_path: Path) -> None:
    words = ("dualpipe", "-p", 2, "-m", 4, "--steps", 2)
    first, second = joined(tmp_path, *words, profiled=True)
    assert first[0] == 0, first[2]
    # What takes as long to load as PyTorch, and our engine does without.
    loaded = {line.split("|")[-1].strip() for line in first[2].splitlines()}
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "torch.distributed.fsdp", "torch.distributed.pipelining"}
    assert "gradients   all 60 equal" in first[1]
    assert "makespan" in first[1]
    assert second[:2] == (0, "")


def test_a_rank_of_torchrun_fails(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import os, torch\n"
        "class Layer(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if torch.distributed.is_initialized() and os.environ['RANK'] == '1':\n"
        "            raise ValueError('no')\n"
        "        return super().forward(x)\n"
        "def build(stages):\n"
        "    data = lambda u: (torch.ones(1, 4), torch.zeros(1, 4))\n"
        "    modules = [Layer(4, 4) for _ in range(stages)]\n"
        "    return modules, torch.nn.functional.mse_loss, data\n"
    )
    words = ("gpipe", "-p", 2, "-m", 2, "--model", "model.py:build", "--runtime", "debubble")
    results = joined(tmp_path, *words, "--timeout", 30)
    assert [code for code, _, _ in results] == [2, 2]
    errors = "".join(error for _, _, error in results)
    assert "rank 1 failed: ValueError: no (model.py, line 5); it was at action 1: 1F0" in errors


def test_ctrl_c_in_a_world_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import os, signal, torch\n"
        "class Layer(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if torch.distributed.is_initialized():\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return super().forward(x)\n"
        "def build(stages):\n"
        "    data = lambda u: (torch.ones(1, 4), torch.zeros(1, 4))\n"
        "    return [Layer(4, 4) for _ in range(stages)], torch.nn.functional.mse_loss, data\n"
    )
    words = ("gpipe", "-p", 1, "-m", 2, "--model", "model.py:build", "--runtime", "debubble")
    ((code, out, err),) = joined(tmp_path, *words, "--timeout", 30, size=1)
    assert (code, out, err) == (130, "", "debubble: interrupted\n")


def test_a_world_of_another_size(refused: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank of torchrun says so, before it meets the others."""
    world = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for rank in range(2):
        for key, value in (world | {"RANK": rank}).items():
            monkeypatch.setenv(key, str(value))
        message = refused("run", "1f1b", "-p", 3, "-m", 2)
        assert "torchrun started 2 processes, the schedule has 3 ranks; give -p 2" in message
