"""Efficiencies of published steps, and the errors of steps that gave none.

    python benchmarks/planner_efficiencies.py ROWS.csv … [--write]

A row implies the efficiency with which the model takes as long as was measured. One efficiency per
GPU, tensor-parallel degree, precision, runtime and kind of model is the median over sources of the
median over a source's rows. Errors are of rows that are predicted without those of their own
source, or of their own source and model: see `docs/planner-truth.md`. `--write` replaces both
tables in `debubble.planner.cost`.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from published_rows import read_rows

import debubble.planner.cost
from debubble.core.errors import DebubbleError
from debubble.planner.case import Case
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.cost.measured_rows import MeasuredRow, read_row
from debubble.planner.cost.published_efficiencies import (
    Factor,
    Factors,
    generation,
    match_of,
    shape_of,
)
from debubble.planner.cost.step import step_time

LEAST_MFU = 0.25
"""Share of the 16-bit peak below which a dense step was limited by something else: such rows give
no efficiency."""
SHRINK = 1
"""Weight of the median over all degrees next to that of a degree's sources, in sources."""
OPEN = ("micro_batch", "vp", "schedule", "seq")
"""Columns without which a row gives no efficiency."""


@dataclass(frozen=True)
class Measured:
    """A row with a measured step, and the efficiency that it implies."""

    number: int
    row: dict[str, str]
    plan: MeasuredRow
    seconds: float
    efficiency: float | None

    @property
    def source(self) -> str:
        """Publication and release."""
        return self.row["source"]

    @property
    def publication(self) -> str:
        """Publication without release: its first word, such as a repository."""
        return self.source.split()[0]

    @property
    def case(self) -> Case:
        """The plan with the shipped efficiencies."""
        return self.plan.case


def measured(paths: Iterable[str]) -> list[Measured]:
    """Rows with a measured step that can be predicted."""
    found = []
    for path in paths:
        for number, row in enumerate(read_rows(path)):
            try:
                plan = read_row(row, f"row {number}")
                if plan.seconds:
                    step_time(plan.case)
                    own = implied(plan)
                    found.append(Measured(number, row, plan, plan.seconds, own))
            except (ValueError, ArithmeticError):
                continue
    return found


def mfu(case: Case, seconds: float) -> float:
    """Share of the 16-bit peak that a step's model FLOPs reach, all pairs of tokens counted."""
    flops = flops_per_token(case.model, case.training.sequence)["full"] * case.training.tokens
    return flops / seconds / case.cluster.gpus / case.gpu.bf16


def implied(plan: MeasuredRow) -> float | None:
    """The efficiency that a row implies; None where it does not tell."""
    assert plan.seconds is not None
    case = plan.case
    if any(text.split()[0] in OPEN for text in plan.assumed):
        return None
    if not case.model.experts and mfu(case, plan.seconds) < LEAST_MFU:
        return None
    try:
        return calibrated(plan.with_factors(Factors()), plan.seconds).table[-1].efficiency
    except DebubbleError:
        return None


def fitted(rows: Iterable[Measured]) -> Factors:
    """The efficiencies that rows imply, a median over sources of each one's median."""
    groups: dict[tuple, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for item in rows:
        if item.efficiency is not None:
            case = item.case
            key = (
                case.gpu.name, case.degrees.tp, case.training.precision,
                case.training.runtime.name, bool(case.model.experts),
            )  # fmt: skip
            groups[key][item.source].append(item.efficiency)
    all_degrees: dict[tuple, dict[tuple, float]] = defaultdict(dict)
    for (gpu, tp, *rest), sources in groups.items():
        for source, values in sources.items():
            all_degrees[gpu, *rest][tp, source] = median(values)
    table = []
    for (gpu, tp, precision, runtime, experts), sources in sorted(groups.items()):
        own = [median(values) for values in sources.values()]
        pooled = median(all_degrees[gpu, precision, runtime, experts].values())
        value = (len(own) * median(own) + SHRINK * pooled) / (len(own) + SHRINK)
        rows_of = sum(map(len, sources.values()))
        names = "; ".join(dict.fromkeys(short(source) for source in sources))
        table.append(
            Factor(gpu, tp, precision, round(value, 3), runtime, names, rows_of, experts=experts)
        )
    return Factors(tuple(table))


def short(source: str) -> str:
    """Publication of a source in a few words."""
    words = source.split()
    named = [word for word in words if word.startswith("arXiv:")]
    name = words[0].split("/")[-1]
    return f"{name} {named[0]}" if named else name


def left_out(
    rows: Sequence[Measured], fold: Callable[[Measured], Hashable]
) -> Iterator[tuple[Measured, Factors]]:
    """Every row with the efficiencies of the rows outside its fold."""

    @cache
    def others(name: Hashable) -> Factors:
        return fitted(item for item in rows if fold(item) != name)

    for item in rows:
        yield item, others(fold(item))


FOLDS: dict[str, Callable[[Measured], Hashable]] = {
    "publication": lambda item: item.publication,
    "release and model": lambda item: (item.source, item.row["model"], item.row["gpus"]),
}
"""Rows that are left out together."""


@dataclass(frozen=True)
class Judged:
    """A row with a prediction to which neither it nor the others of its fold contributed."""

    item: Measured
    seconds: float
    match: str
    fold: str
    factors: Factors

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.seconds / self.item.seconds - 1

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.item.seconds / self.seconds

    @property
    def case(self) -> Case:
        """The plan with the efficiencies of the others."""
        return self.item.plan.with_factors(self.factors)


def judged(rows: Sequence[Measured], fold: str) -> list[Judged]:
    """Rows predicted without those of their fold."""
    return [
        Judged(item, step_time(item.plan.with_factors(factors)).seconds,
               match_of(item.plan.with_factors(factors)), fold, factors)
        for item, factors in left_out(rows, FOLDS[fold])
    ]  # fmt: skip


def nine_of_ten(ratios: Sequence[float]) -> tuple[float, float]:
    """The narrowest range in which 9 of 10 further ratios are: from one of those given to another.

    Between two of n values that stand k apart are k / (n + 1) of all others.
    """
    ordered = sorted(ratios)
    apart = min(math.ceil(0.9 * (len(ordered) + 1)), len(ordered) - 1)
    pairs = zip(ordered, ordered[apart:], strict=False)
    low, high = min(pairs, key=lambda pair: pair[1] / pair[0])
    return math.floor(100 * low) / 100, math.ceil(100 * high) / 100


LEAST_ROWS = 17
"""Rows that a range of its own needs, however many predictions each has."""


def errors(found: Sequence[Judged]) -> list[tuple[str, str, str, str, float, float, int]]:
    """Ranges by runtime, generation, match and shape, and numbers of rows; empty for all."""
    groups: dict[tuple[str, str, str, str], list[Judged]] = defaultdict(list)
    for one in found:
        case = one.item.case
        if case.model.experts or mfu(case, one.item.seconds) >= LEAST_MFU:
            runtime, chip = case.training.runtime.name, generation(case.gpu.name)
            for key in ((runtime, chip), (runtime, ""), ("", "")):
                groups[*key, one.match, shape_of(case)].append(one)
    numbers = {key: len({id(one.item) for one in some}) for key, some in groups.items()}
    return [
        (*key, *nine_of_ten([one.ratio for one in some]), numbers[key])
        for key, some in sorted(groups.items())
        if numbers[key] >= LEAST_ROWS
    ]


def write(rows: Sequence[Measured], found: Sequence[Judged]) -> None:
    """Replace the tables of the package."""
    folder = Path(debubble.planner.cost.__file__).parent
    with (folder / "published_efficiencies.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            ("gpu", "tp", "precision", "efficiency", "runtime", "source", "rows", "experts")
        )
        for one in fitted(rows).table:
            kind = "yes" if one.experts else "no"
            out.writerow((one.gpu, one.tp, one.precision, one.efficiency, one.runtime, one.source,
                          one.rows, kind))  # fmt: skip
    with (folder / "published_errors.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("runtime", "generation", "match", "shape", "low", "high", "rows"))
        out.writerows(errors(found))


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description="Efficiencies and errors of published steps.")
    parser.add_argument("rows", metavar="ROWS.csv", nargs="+")
    parser.add_argument("--write", action="store_true")
    typed = parser.parse_args()
    rows = measured(typed.rows)
    found = [one for fold in FOLDS for one in judged(rows, fold)]
    if typed.write:
        write(rows, found)
    for line in errors(found):
        print(*line, sep="\t")


if __name__ == "__main__":
    main()
