"""Which planted faults are named first, and on how many seeds.

    python benchmarks/planted_faults.py [--seeds N] [fault ...]

Runs come from the executor of the tests, which shares no code with the engine. A fault counts as
named when the first finding has its cause and place; a run without a fault when there is none.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.diagnosis.planted import PLANTED, Planted  # noqa: E402

from debubble.diagnosis.diagnose import Diagnosis, diagnose  # noqa: E402


def named_first(planted: Planted, found: Diagnosis) -> bool:
    """Whether the first finding is the fault, or there is none where nothing is wrong."""
    if planted.cause is None:
        return not found.findings
    if not found.findings or found.findings[0].cause != planted.cause:
        return False
    where = found.findings[0].where
    return all(where.get(key) == value for key, value in planted.where.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Planted faults, and what is named.")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("faults", nargs="*", metavar="fault")
    typed = parser.parse_args()
    print("| planted | named first | gain, median | replay error, most | other first findings |")
    print("|---|---|---|---|---|")
    for name in typed.faults or PLANTED:
        right, gains, errors = 0, [], []
        others: Counter[str] = Counter()
        for seed in range(typed.seeds):
            planted = PLANTED[name](seed)
            found = diagnose(planted.made.observed())
            errors.append(found.replay_error)
            if named_first(planted, found):
                right += 1
                gains += [one.gain or 0.0 for one in found.findings[:1]]
            elif found.findings:
                others[f"{found.findings[0].cause} {found.findings[0].where}"] += 1
        gain = f"{np.median(gains):.1%}" if gains else "–"
        wrong = ", ".join(f"{cause} × {count}" for cause, count in others.items()) or "–"
        row = [name, f"{right} of {typed.seeds}", gain, f"{max(errors):.2%}", wrong]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
