"""Run the fuzzers for some minutes and print figures; exits with 1 when something failed."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
import traceback
from random import Random

from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="of the first input of every target")
    parser.add_argument("--count", type=int, default=0, help="inputs of each, however long")
    parser.add_argument("target", nargs="*", help=f"all by default: {', '.join(TARGETS)}")
    given = parser.parse_args()
    faulthandler.enable()
    names = given.target or list(TARGETS)
    print(f"{'target':<12}{'inputs':>9}{'accepted':>10}{'failures':>10}  first failing seed")
    failed = False
    for name in names:
        stop = time.monotonic() + 60 * given.minutes / len(names)
        inputs = accepted = failures = 0
        first: int | None = None
        while inputs < given.count if given.count else time.monotonic() < stop:
            seed = given.seed + inputs
            inputs += 1
            try:
                accepted += TARGETS[name](Random(f"{name} {seed}"))
            except Exception:
                failures += 1
                if first is None:
                    first = seed
                    traceback.print_exc()
        failed = failed or failures > 0
        again = (
            ""
            if first is None
            else f"{first}: python -m tests.fuzz {name} --seed {first} --count 1"
        )
        print(f"{name:<12}{inputs:>9,}{accepted:>10,}{failures:>10,}  {again}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
