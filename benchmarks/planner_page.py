"""Tables and sentences of docs/planner-truth.md, from the rows of its data files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from statistics import median

Row = dict[str, object]
"""A row of a data file."""

VERDICTS = ("fits", "may_not_fit", "too_large")


def percent(value: object, digits: int = 1) -> str:
    """A share of a data file as text."""
    return f"{100 * float(str(value)):.{digits}f} %"


def kinds(rows: Iterable[Row]) -> Iterator[str]:
    """The table of the page: a row for every kind, without its release and model."""
    yield "| rows of | rows | median | 90 % within | inside the error bar |\n|---|---|---|---|---|"
    for row in rows:
        if (row["by"], row["left_out"]) == ("kind", "release and model"):
            shares = (
                f"{percent(row['median'])} | {percent(row['ninth'])} | {percent(row['inside'], 0)}"
            )
            yield f"| {row['group']} | {row['rows']} | {shares} |"


def worst_table(rows: Iterable[Row], count: int) -> Iterator[str]:
    """The first of them for the page."""
    yield "| error | measured | predicted | plan | why |\n|---|---|---|---|---|"
    for row in islice(rows, count):
        error = f"{100 * float(str(row['error'])):+.0f} %".replace("-", "−")
        yield (
            f"| {error} | {row['measured']} s | {row['predicted']} s | "
            f"{row['plan']} ({row['source']}) | {row['why']} |"
        )


def answer(rows: Iterable[Row]) -> str:
    """The first sentence of the page."""
    medians = {
        str(row["group"]): float(str(row["median"]))
        for row in rows
        if (row["by"], row["left_out"]) == ("kind", "release and model")
    }
    experts = [value for name, value in medians.items() if name.startswith("experts")]
    dense = [value for name, value in medians.items() if not name.startswith("experts")]
    return (
        f"Published steps of dense models are predicted with a median error of "
        f"{percent(min(dense))} to {percent(max(dense))} by kind of run, those of mixtures of "
        f"experts of {percent(min(experts))} to {percent(max(experts))}."
    )


def ranking_summary(rows: Sequence[Row]) -> str:
    """The sentence of the page."""
    if not rows:
        return "no group has four plans"
    taus = [float(str(row["tau"])) for row in rows]
    rest = [float(str(row["tau_of_the_rest"])) for row in rows if row["tau_of_the_rest"] != ""]
    ranks = [int(str(row["rank_of_fastest"])) for row in rows]
    first, near = (sum(rank <= most for rank in ranks) for most in (1, 2))
    return (
        f"in {len(rows)} groups the median of Kendall's tau is {median(taus):.2f}, from "
        f"{min(taus):.2f} to {max(taus):.2f}. The fastest plan is also predicted to be the "
        f"fastest in {first} groups, and is among the first two in {near}. Without "
        f"{sum(int(str(row['apart'])) for row in rows)} of "
        f"{sum(int(str(row['plans'])) for row in rows)} rows, of nanotron, "
        f"the median is {median(rest or [math.nan]):.2f}"
    )


def verdict_table(rows: Sequence[Row]) -> Iterator[str]:
    """The table of the page: plans of all frameworks together."""
    yield "| plans that | fits | may not fit | too large |\n|---|---|---|---|"
    for name in sorted({str(row["plans"]) for row in rows}):
        mine = [row for row in rows if row["plans"] == name]
        sums = [sum(int(str(row[key])) for row in mine) for key in VERDICTS]
        yield f"| {name} | {' | '.join(map(str, sums))} |"
