"""Run the fuzzers for some minutes and print figures; exits with 1 when something failed."""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import sys
import time
import traceback
from pathlib import Path
from random import Random

from tests.fuzz.readers import READERS
from tests.fuzz.run_readers import ENGINES, load, replay, report, run
from tests.fuzz.targets import TARGETS

LINE = "{:<22}{:>12}{:>12}{:>10}  {}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="of the first input of every target")
    parser.add_argument("--count", type=int, default=0, help="inputs of each, however long")
    parser.add_argument("--engine", choices=ENGINES, default="random",
                        help="of readers; atheris follows the code that inputs reach")  # fmt: skip
    parser.add_argument("--kept", type=Path, default=Path(".fuzz"), metavar="FOLDER",
                        help="where inputs are kept on which a reader failed")  # fmt: skip
    parser.add_argument("--replay", type=Path, metavar="FILE", help="one input for one reader")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="figures as JSON")
    parser.add_argument(
        "target",
        nargs="*",
        help="all by default; 'judged' are " + ", ".join(TARGETS) + "; 'readers' are "
        + ", ".join(READERS),
    )  # fmt: skip
    given = parser.parse_args()
    faulthandler.enable()
    names = []
    for name in given.target or ["judged", "readers"]:
        names += {"judged": [*TARGETS], "readers": [*READERS]}.get(name, [name])
    unknown = [name for name in names if name not in TARGETS and name not in READERS]
    if unknown:
        parser.error(f"unknown target {unknown[0]}")
    if given.engine == "atheris" and importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed; pip install atheris, where there is one")
    if given.replay is not None:
        replay(names[0], given.replay.resolve())
        return 0
    kept = given.kept.resolve()
    kept.mkdir(parents=True, exist_ok=True)
    print(LINE.format("target", "inputs", "accepted", "failures", ""))
    failed, figures = False, []
    if given.engine == "random":
        load()
    end = time.monotonic() + 60 * given.minutes
    for number, name in enumerate(names):
        # What one target leaves over of its time, the others have.
        seconds = max(end - time.monotonic(), 1.0) / (len(names) - number)
        if name in TARGETS:
            failed = judged(name, seconds, given.seed, given.count) or failed
            continue
        found = run(
            name, seconds, engine=given.engine, seed=given.seed, kept=kept, count=given.count
        )
        figures.append(found)
        failed = failed or found.failures > 0
        again = f"{found.kinds} kinds, kept in {given.kept}" if found.failures else ""
        print(
            LINE.format(
                name, f"{found.inputs:,}", f"{found.accepted:,}", f"{found.failures:,}", again
            ),
            flush=True,
        )
        if given.figures is not None:
            given.figures.write_text(report(figures))
    return int(failed)


def judged(name: str, seconds: float, first_seed: int, count: int) -> bool:
    """Run a target that has a judge in this process; whether anything failed."""
    stop = time.monotonic() + seconds
    inputs = accepted = failures = 0
    first: int | None = None
    while inputs < count if count else time.monotonic() < stop:
        seed = first_seed + inputs
        inputs += 1
        try:
            accepted += TARGETS[name](Random(f"{name} {seed}"))
        except Exception:
            failures += 1
            if first is None:
                first = seed
                traceback.print_exc()
    again = "" if first is None else f"python -m tests.fuzz {name} --seed {first} --count 1"
    print(LINE.format(name, f"{inputs:,}", f"{accepted:,}", f"{failures:,}", again), flush=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
