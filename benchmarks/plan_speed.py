"""CPU time of ``debubble plan`` by model: ``python benchmarks/plan_speed.py 64 megatron``.

Arguments are a number of H100s, a framework, and models, all that are shipped unless given. Every
search is a process of its own, start-up included, for 8 sequences of 4,096 tokens per GPU.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from debubble.planner.model.files import read_model, shipped_models


def measure(model: str, gpus: str, framework: str) -> str:
    """Return a row: model, seconds of user CPU, candidates, simulated ones, and the best step."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    length = min(4096, read_model(model).positions or 4096)
    done = subprocess.run(
        [
            sys.executable, "-m", "debubble", "plan", model, "--gpu", "h100", "--gpus", gpus,
            "--batch", str(8 * int(gpus)), "--seq", str(length), "--framework", framework, "--json",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    found = json.loads(done.stdout)
    best = f"{found['plans'][0]['step_time']:.4g} s" if found["plans"] else "none"
    return f"{model:20} {spent:7.1f} {found['considered']:10,} {found['simulated']:8,}  {best}"


if __name__ == "__main__":
    gpus, framework, *models = sys.argv[1:]
    for model in models or shipped_models():
        print(measure(model, gpus, framework), flush=True)
