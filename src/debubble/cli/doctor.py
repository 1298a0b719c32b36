"""``debubble doctor``: installed packages, working extras, and speed."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import debubble as db
from debubble.analysis.layout import definitions, line_width
from debubble.cli.app import command
from debubble.cli.options import AsJson
from debubble.cli.output import note, print_json
from debubble.diagnosis.readers.pool import processors
from debubble.engine.jit import load_compiler

REQUIRED = (
    "numpy", "numba", "matplotlib", "typer", "rich", "pydantic", "PyYAML", "msgspec", "ortools",
)  # fmt: skip
"""Packages that every install has."""

EXTRAS = {
    "serve": ("starlette", "uvicorn"),
    "torch": ("torch",),
    "sweep": ("joblib", "distributed"),
    "ray": ("joblib", "ray"),
    "mcp": ("mcp",),
    "megatron": ("megatron.core",),
}
"""Modules that each extra brings."""

FOR = {
    "serve": "the playground in a browser: serve",
    "torch": "run, profile, and pipelines in a training loop",
    "sweep": "sweeps in processes and on dask",
    "ray": "sweeps on Ray",
    "mcp": "tools for coding agents: mcp",
    "megatron": "schedules in Megatron-LM's training loop",
}
"""Purpose of each extra."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

RANKS, MICROBATCHES, RUNS = 16, 2048, 5
"""The simulation whose time is measured: 65,536 actions, the fastest of some runs."""


def doctor(as_json: AsJson = False) -> None:
    """Report what is installed, what works, and how fast it is."""
    found = examine()
    if as_json:
        print_json(found)
    else:
        print(report(found, line_width()))


def examine() -> dict[str, Any]:
    """Return all findings as plain data."""
    extras = {name: _extra(name) for name in EXTRAS}
    return {
        "debubble": db.__version__,
        "folder": os.path.dirname(db.__file__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": processors(),
        "packages": {name: _version(name) for name in REQUIRED},
        "extras": extras,
        "torch": _torch() if extras["torch"]["works"] else None,
        "browser": next(filter(None, map(shutil.which, BROWSERS)), None),
        "speed": _measured(),
    }


def report(found: dict[str, Any], width: int) -> str:
    """Return the findings of :func:`examine` as text."""
    packages = ", ".join(f"{name} {v or 'missing'}" for name, v in found["packages"].items())
    speed = found["speed"]
    rows = [
        ("debubble", found["debubble"], found["folder"]),
        ("Python", found["python"], f"{found['system']}, {found['processors']} processors"),
        ("packages", "", packages),
    ]
    for name, extra in found["extras"].items():
        missing = f"{extra['reason']}; pip install 'debubble[{name}]'"
        versions = ", ".join(f"{module} {v}" for module, v in extra["packages"].items())
        works = "works" if extra["works"] else "no"
        rows.append((f"[{name}]", works, f"{FOR[name]}: {versions if extra['works'] else missing}"))
    if found["torch"]:
        devices = ", ".join(found["torch"]["devices"]) or "no GPU"
        rows.append(("torch", "", f"{', '.join(found['torch']['backends'])}; {devices}"))
    rows.append(("browser", "yes" if found["browser"] else "no", found["browser"] or _NO_BROWSER))
    kernels = "cached" if speed["machine_code"] else "no"
    rows.append(("kernels", "compiled" if speed["compiled"] else kernels, _kernels(speed)))
    what = f"per action, to generate, check and simulate 1f1b with {speed['actions']:,} actions"
    again = f"{speed['ns_per_action_again']:.1f} ns with other costs"
    rows.append(("speed", f"{speed['ns_per_action']:.0f} ns", f"{what}; {again}"))
    return "\n".join(definitions(rows, width))


_NO_BROWSER = "none found; only the tests of pages need Chromium"


def _kernels(speed: dict[str, Any]) -> str:
    if speed["compiled"]:
        return (
            f"{speed['compiled']} kernels in {speed['first_seconds']:.0f} s, once for this Python"
        )
    if not speed["machine_code"]:
        return "interpreted: numba cannot be loaded; pip install numba"
    return f"machine code was there, loaded in {speed['first_seconds']:.1f} s"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extra(name: str) -> dict[str, Any]:
    """Try to import the modules of an extra."""
    reason = ""
    for module in EXTRAS[name]:
        try:
            with warnings.catch_warnings(action="ignore"):
                importlib.import_module(module)
        except ImportError as error:
            missing = getattr(error, "name", None) == module
            reason = f"{module} is missing" if missing else f"{module}: {error}"
            break
    packages = {module: _version(module) for module in EXTRAS[name]}
    return {"works": not reason, "reason": reason or None, "packages": packages}


def _torch() -> dict[str, list[str]]:
    """Return the backends and devices of PyTorch."""
    import torch
    import torch.distributed as dist

    names = ("gloo", "nccl", "mpi") if dist.is_available() else ()
    backends = [name for name in names if getattr(dist, f"is_{name}_available")()]
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"backends": backends, "devices": devices}


def _measured() -> dict[str, Any]:
    """Measure the processor time of a simulation, and count the kernels it compiles."""
    there = load_compiler()

    def once(costs: Any) -> None:
        order = db.make("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
        assert db.check(order).ok
        db.simulate(order, costs).peak_activation.max()

    costs = [db.Costs(F=1, B=2 + 0.01 * run) for run in range(RUNS)]
    began = time.process_time()
    compiled = _compiled(lambda: once(costs[0])) if there else 0
    if not there:
        once(costs[0])
    first = time.process_time() - began
    if compiled:
        note("debubble: compiled what is kept from now on")
    order = db.make("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    whole, again = [], []
    for each in costs:
        began = time.process_time()
        once(each)
        middle = time.process_time()
        assert db.simulate(order, each).makespan
        whole.append(middle - began)
        again.append(time.process_time() - middle)
    per_action = 1e9 / len(order)
    return {
        "actions": len(order), "ns_per_action": min(whole) * per_action,
        "ns_per_action_again": min(again) * per_action, "machine_code": there,
        "compiled": compiled, "first_seconds": first,
    }  # fmt: skip


def _compiled(work: Callable[[], None]) -> int:
    """Do some work; return how many kernels it compiled."""
    from numba.core import event

    with event.install_recorder("numba:compile") as recorder:
        work()
    return sum(1 for _, each in recorder.buffer if each.is_start)


app = command(doctor, ["doctor", "doctor --json"])
