"""Build wheel and sdist, install them into empty environments, and use what was installed.

``python -m tests.packages`` takes the Python that runs it and every extra alone; ``--python``
takes others, ``--lowest`` the lowest versions of all dependencies that pyproject.toml allows.
Nothing here needs the development environment, and nothing of the checkout is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]
PINNED = re.findall(r"torch==\S+", " ".join(PROJECT["optional-dependencies"]["dev"]))
"""The build of PyTorch for processors alone; any other brings gigabytes of CUDA."""

BASE = """
import debubble as db
timeline = db.simulate(db.make("zb-h1", ranks=4, microbatches=8), db.Costs(F=1, I=1, W=1))
assert timeline.makespan == 27, timeline.makespan
timeline.save("x.png"), timeline.save("x.html"), timeline.save("x.svg"), timeline.save("x.pdf")
db.make("1f1b", ranks=64, microbatches=1024)  # enough actions for compiled kernels
assert db.simulate(db.make("1f1b", ranks=64, microbatches=1024)).makespan == 3 * (1024 + 63)
assert db.check(db.make("dualpipe-v", ranks=4, microbatches=8)).ok
print(db.optimize(ranks=2, chunks=1, microbatches=2, time_limit=2).status)
"""

SERVE = """
import asyncio, json
from debubble.playground import connection, work
from debubble.playground.app import make_app
work.warm_up = lambda: None  # compiles for minutes what the plain install has tried
async def ask():
    sent = []
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
             "scheme": "http", "path": "/api/schedules", "raw_path": b"/api/schedules",
             "query_string": b"", "root_path": "", "headers": [(b"host", b"localhost")],
             "client": ("127.0.0.1", 1), "server": ("localhost", 80)}
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    await make_app()(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    assert len(json.loads(sent[1]["body"])["schedules"]) > 20
asyncio.run(ask())
"""

COMMANDS = {
    "": [
        "debubble --version",
        "debubble schedules zb-v",
        "debubble compare gpipe 1f1b zb-h1 -p 4 -m 8 --memory 4 -o compare.html",
        "debubble export zb-v -p 4 -m 8 --to torch-csv -o zbv.csv",
        "debubble check zbv.csv",
        "debubble draw zbv.csv",
        "debubble plan llama-3.1-8b --gpu a100-40gb --gpus 8 --batch 16 --seq 4096",
    ],
    "torch": ["debubble run 1f1b -p 2 -m 2 --steps 1"],
    "sweep": ["debubble sweep sweep.yaml -o sweep.sqlite --jobs 2"],
    "megatron": [
        "python -c __import__('debubble.megatron',fromlist=['*']).forward_backward_func('1f1b')"
    ],
    "mcp": ["python -c __import__('debubble.cli.mcp',fromlist=['*']).make_server()"],
    "ray": ["debubble sweep sweep.yaml -o sweep.sqlite --jobs 2 --backend ray"],
}
"""What each extra is for, as commands; the extra without a name is the plain install."""

SWEEP = """
command: simulate
grid: {schedule: [1f1b, gpipe], ranks: [2, 4], microbatches: [8]}
"""
"""Points of a sweep, for the extras that sweep."""

MEANS = {
    "optimize": [""], "run": ["torch"], "ray": ["ray"], "all": ["serve", "torch", "sweep"],
}  # fmt: skip
"""What an extra is used for, where that is not its own name alone."""


def call(words: Sequence[object], folder: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed, and return what it printed."""
    found = subprocess.run(
        list(map(str, words)), cwd=folder, capture_output=True, text=True, check=False,
        timeout=1800, env=env,
    )  # fmt: skip
    if found.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{found.stdout}\n{found.stderr}")
    return found.stdout


def environment(folder: Path, python: str, wanted: Iterable[str]) -> Path:
    """An empty environment with these requirements; the folder of its programs."""
    call([python, "-m", "venv", folder], folder.parent)
    limits = folder / "limits.txt"
    limits.write_text("\n".join(PINNED), encoding="utf-8")
    pip = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    call([*pip, "install", "--quiet", "--constraint", limits, *wanted], folder)
    call([*pip, "check"], folder)
    return folder / "bin"


def build(work: Path) -> Path:
    """Wheel and sdist in ``dist``; the wheel, which is the same when it is made from the sdist."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    programs = environment(work / "build", sys.executable, ["hatchling>=1.27"])
    call([programs / "python", "-m", "hatchling", "build", "-d", dist], ROOT)
    [wheel], [source] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(work / "source", filter="data")
    [unpacked] = (work / "source").iterdir()
    again = work / "again"
    call([programs / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", again], unpacked)
    [rebuilt] = again.glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(rebuilt) as second:
        contents = [{i.filename: i.CRC for i in z.infolist()} for z in (first, second)]
    assert contents[0] == contents[1], "the wheel from the sdist differs"
    inside = {name for name in contents[0] if name.startswith("debubble/")}
    tracked = call(["git", "ls-files", "src/debubble"], ROOT).split()
    assert inside == {name.removeprefix("src/") for name in tracked}, "files are missing or extra"
    print(f"{wheel.name}  {wheel.stat().st_size:,} bytes, {len(inside)} files")
    print(f"{source.name}  {source.stat().st_size:,} bytes")
    return wheel


def needs(extras: Iterable[str]) -> list[str]:
    """What the project and these extras need, extras of its own in full."""
    rows = list(PROJECT["dependencies"])
    for extra in extras:
        for row in PROJECT["optional-dependencies"][extra]:
            own = re.match(r"debubble\[(.*)\]", row)
            rows += needs(own[1].split(",")) if own else [row]
    return sorted(set(rows))


def lowest(extras: Iterable[str]) -> list[str]:
    """The lowest versions that pyproject.toml allows, with these extras, as requirements."""
    bounds = [re.match(r"([\w.\[\]-]+)>=([\w.]+)", row) for row in needs(extras)]
    return [f"{found[1]}=={found[2]}" for found in bounds if found and found[1] != "torch"]


def use(programs: Path, extra: str, folder: Path) -> None:
    """Use what an extra is for, away from the checkout."""
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    for name in MEANS.get(extra, [extra]):
        scripts = {"": BASE, "serve": SERVE}
        if name in scripts:
            call([programs / "python", "-I", "-c", textwrap.dedent(scripts[name])], folder)
        for line in COMMANDS.get(name, []):
            program, *words = line.split()
            (folder / "sweep.sqlite").unlink(missing_ok=True)
            call([programs / program, *words], folder)


def containerfile() -> Iterator[tuple[str, str]]:
    """Instructions of the Containerfile and what follows each."""
    for line in (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def contain(work: Path) -> None:
    """Go through the Containerfile's steps in a folder in place of a container, and ask it."""
    env = dict(os.environ)
    for word, rest in containerfile():
        here = re.sub(r"(?<![\w.])/(srv|opt|var)/", rf"{work}/\1/", rest)
        if word == "ENV":
            name, _, env[name] = here.partition("=")
        elif word == "COPY":
            *names, target = here.split()
            for name in names:
                goal = Path(target) / name if target.endswith("/") else Path(target)
                goal.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, goal)
        elif word == "RUN" and not rest.startswith("useradd"):
            call(
                ["sh", "-c", here.replace("python -m venv", f"{sys.executable} -m venv")], work, env
            )
        elif word == "ENTRYPOINT":
            words = [*json.loads(here), "--port", "0", "--name", "schedules.example.org"]
            server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env, cwd=work)
    assert server.stderr is not None
    told = [server.stderr.readline(), server.stderr.readline()]
    port = told[1].split("/ (")[0].rpartition(":")[2]
    request = Request(f"http://127.0.0.1:{port}/api/schedules")
    request.add_header("Host", "schedules.example.org")
    with urlopen(request, timeout=60) as answer:
        found = json.loads(answer.read())
    print(f"the Containerfile's steps work: {len(found['schedules'])} schedules are served")
    server.terminate()
    server.wait()


def main() -> None:
    """Build, install and use every extra alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="a Python to install into")
    parser.add_argument("--extra", action="append", help="an extra; all of them unless given")
    parser.add_argument("--lowest", action="store_true", help="the lowest versions allowed")
    parser.add_argument("--container", action="store_true", help="the Containerfile's steps alone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if given.container:
            contain(work)
            return
        wheel = build(work)
        for python in given.python or [sys.executable]:
            tried: dict[tuple[str, ...], str] = {}
            for extra in given.extra if given.extra is not None else ["", *EXTRAS]:
                same = tried.setdefault(tuple(needs([extra] if extra else [])), extra)
                if same != extra:
                    print(f"{extra:<9} needs what {same or 'plain'} needs")
                    continue
                folder = Path(tempfile.mkdtemp(dir=work))
                wanted = [f"{wheel}[{extra}]" if extra else str(wheel)]
                wanted += lowest([extra] if extra else []) if given.lowest else []
                programs = environment(folder / "installed", python, wanted)
                use(programs, extra, folder)
                told = call([programs / "python", "--version"], folder).strip()
                size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) >> 20
                print(f"{told}  {extra or 'plain':<9} works, {size:,} MiB", flush=True)
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
