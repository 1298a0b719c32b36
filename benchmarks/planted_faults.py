"""Which planted faults are named first, and whether what is promised comes true.

    python benchmarks/planted_faults.py [--seeds N] [--transports] [fault ...]

Runs come from the executor of the tests, which shares no code with the engine. A fault counts as
named when the first finding has its cause and place; a run without a fault when there is none.
The executor runs the same job again without the fault: the time that ``--set`` predicts for it,
and the gain that the finding promises, are compared with that. With ``--transports``, faults are
planted under every transport, in runs whose messages vary.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.diagnosis.planted import OVER_TRANSPORTS, PLANTED, Planted  # noqa: E402

from debubble.diagnosis.changes import Change  # noqa: E402
from debubble.diagnosis.diagnose import diagnose  # noqa: E402
from debubble.diagnosis.what_if import with_changes  # noqa: E402


@dataclass
class Row:
    """What was found over all seeds of a fault.

    Parameters
    ----------
    named
        Seeds whose fault was named first.
    true, gains
        Gain of removing the fault, by the executor, and by the first finding.
    predicted
        Predicted time without the fault over the true one, minus 1.
    errors
        Replay errors.
    others
        First findings that are not the fault.
    """

    named: int = 0
    true: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, planted: Planted) -> None:
        """Diagnose a run, and run it again without its fault."""
        found = diagnose(planted.made.observed())
        self.errors.append(found.replay_error)
        first = found.findings[0] if found.findings else None
        right = planted.named_first(found.findings)
        self.named += right
        if not right and first is not None:
            self.others[f"{first.cause} {first.where}"] += 1
        if planted.healthy is None:
            return
        healthy = planted.healthy.seconds()
        self.true.append(1 - healthy / planted.made.seconds())
        if right and first is not None and first.gain is not None:
            self.gains.append(first.gain - self.true[-1])
        if planted.changes:
            answer = with_changes(found.replay, [Change.parse(one) for one in planted.changes])
            self.predicted.append(answer.after / healthy - 1)


def largest(errors: list[float]) -> str:
    """The median and the largest of some errors, in percent."""
    if not errors:
        return "–"
    worst = max(errors, key=abs)
    return f"{100 * np.median(errors):+.1f}, {100 * worst:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Planted faults, and what is named.")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--transports", action="store_true")
    parser.add_argument("faults", nargs="*", metavar="fault")
    typed = parser.parse_args()
    planted = OVER_TRANSPORTS if typed.transports else PLANTED
    print(
        "| planted | named first | true gain, median | gain: error in points, median and most "
        "| what-if: error in %, median and most | replay error, most | other first findings |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in typed.faults or planted:
        row = Row()
        for seed in range(typed.seeds):
            row.add(planted[name](seed))
        true = f"{np.median(row.true):.1%}" if row.true else "–"
        wrong = ", ".join(f"{cause} × {count}" for cause, count in row.others.items()) or "–"
        cells = [name, f"{row.named} of {typed.seeds}", true, largest(row.gains),
                 largest(row.predicted), f"{max(row.errors):.2%}", wrong]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
