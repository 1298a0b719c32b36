"""Do what-ifs come true? Jobs that run for real, with a fault and without.

    python benchmarks/experiments.py [--keep FOLDER] [--again] [word ...]

Every job is a pipeline of PyTorch or of ours on processes of this machine, whose stages sleep, so
that cores do not matter. What ``debubble trace --set`` says of the run with a fault is compared
with the run without one; the first finding, with the fault. Words choose experiments that have all
of them in their name. With ``--keep`` traces stay, and with ``--again`` those that are there are
diagnosed again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.command import call  # noqa: E402
from tests.diagnosis.experiments.catalog import EXPERIMENTS  # noqa: E402
from tests.diagnosis.experiments.jobs import Job  # noqa: E402
from tests.diagnosis.experiments.outcome import Outcome, outcome  # noqa: E402
from tests.diagnosis.experiments.runs import Ran, ran  # noqa: E402


def once(job: Job, folder: Path, again: bool) -> Ran:
    """Run a job, or take what is kept of it."""
    words = f"{job.runtime} {job.schedule} {job.copies}x{job.ranks} "
    words += f"{job.rows} rows " if job.rows > Job.rows else ""
    words += "late " if job.late else ""
    words += job.fault.words if job.fault else "healthy"
    here = folder / re.sub(r"[^a-zA-Z0-9+]+", "_", words.replace("×", "x"))
    kept = here / "ran.json"
    if kept.exists() and again:
        data = json.loads(kept.read_text())
        return Ran(data["step"], tuple(data["steps"]), here / data["trace"])
    shutil.rmtree(here, ignore_errors=True)
    found = ran(job, here)
    kept.write_text(json.dumps(asdict(found) | {"trace": found.trace.name}))
    return found


def said(found: dict[str, Any] | None) -> str:
    """Cause, place and gain of a finding."""
    if found is None:
        return "–"
    where = " ".join(f"{key} {at}" for key, at in found["where"].items() if key in PLACES and at
                     is not None)  # fmt: skip
    gain = "no gain" if found["gain"] is None else f"{found['gain']:.1%}"
    return f"{found['cause']} {where} {gain}".replace("  ", " ")


PLACES = ("stage", "rank", "copy", "link")


def row(one: Outcome) -> str:
    """A row of the table."""
    cells = [
        one.experiment.name, f"{1e3 * one.healthy:.1f}", f"{1e3 * one.faulty:.1f}",
        f"{one.gain:.1%}", f"{1e3 * one.after:.1f} ({one.after / one.healthy - 1:+.1%})",
        said(one.found), "yes" if one.right else "no",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def healthy_ones(done: Mapping[Job, Ran]) -> list[str]:
    """What is said of runs without a fault: nothing, or what their transfers cost."""
    lines = ["", "| job without a fault | step ms | finding | right |", "|---|---|---|---|"]
    right = count = 0
    for job, one in done.items():
        if job.fault is not None:
            continue
        findings = call("trace", one.trace, "--json").data["findings"]
        fine = all(found["cause"] == "transfer" for found in findings)
        right, count = right + fine, count + 1
        name = f"{job.runtime} {job.schedule}, {job.copies} × {job.ranks} ranks"
        name += ", large messages" if job.rows > Job.rows else ""
        name += ", receives posted late" if job.late else ""
        first = said(findings[0] if findings else None)
        lines.append(f"| {name} | {1e3 * one.step:.1f} | {first} | {'yes' if fine else 'no'} |")
    return [*lines, "", f"{right} of {count} without a fault are told so"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Experiments with faults.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("words", nargs="*", metavar="word")
    typed = parser.parse_args()
    chosen = [one for one in EXPERIMENTS if all(word in one.name for word in typed.words)]
    print("| job and fault | healthy ms | faulty ms | true gain | what-if ms | finding | right |")
    print("|---|---|---|---|---|---|---|", flush=True)
    done: dict[Job, Ran] = {}
    right = named = held = 0
    with tempfile.TemporaryDirectory() as folder:
        keep = typed.keep or Path(folder)
        for one in chosen:
            for job in (one.job.without_fault(), one.job):
                if job not in done:
                    done[job] = once(job, keep, typed.again)
            found = outcome(one, done[one.job.without_fault()], done[one.job])
            right += found.right
            named += found.named
            held += found.what_if_holds
            print(row(found), flush=True)
        lines = healthy_ones(done)
    print(f"\n{right} of {len(chosen)} within bounds; named {named}, what-if {held}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
