"""Costs of actions: the median of every kind and stage, and the spread around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from debubble.core.costs import Costs
from debubble.core.kinds import KINDS
from debubble.diagnosis.observed import Times
from debubble.diagnosis.replay import MILLISECONDS, Replay, as_matrix
from debubble.diagnosis.run import PAIR, Run, class_name
from debubble.interchange.cost_files import costs_data

ALIKE = 1.2
"""Minimum ratio of link times with separate costs."""

OUTLIER = 1.5
"""Minimum ratio of an outlier to the median of its kind and stage."""


@dataclass(frozen=True)
class ActionSpread:
    """Spread of the times of one kind on one stage, in seconds.

    Parameters
    ----------
    kind, stage
        Name of the kind, ``"OVERLAP_F_B"`` for overlapped groups, and the stage.
    count, median, mean, p10, p90
        Number of actions, and statistics of their times.
    cv
        Standard deviation over the mean.
    drift
        Change of the median from the first to the last step, as a share, by a straight line.
    outliers
        Actions that take 1.5 times the median or more.
    """

    kind: str
    stage: int
    count: int
    median: float
    mean: float
    p10: float
    p90: float
    cv: float
    drift: float
    outliers: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, times in milliseconds."""
        times = ("median", "mean", "p10", "p90")
        plain = {name: getattr(self, name) for name in ("kind", "stage", "count")}
        plain |= {name: _short(getattr(self, name) * MILLISECONDS) for name in times}
        return plain | {"cv": _short(self.cv), "drift": _short(self.drift),
                        "outliers": self.outliers}  # fmt: skip


def spreads_of(run: Run) -> tuple[ActionSpread, ...]:
    """Return times of every kind and stage, over all steps and copies."""
    found = []
    known = np.where(run.known, run.duration, np.nan)
    for cls in np.unique(run.cls).tolist():
        for stage in range(run.schedule.stages):
            columns = (run.cls == cls) & (run.stage == stage) & run.counted
            values = known[:, columns]
            there = values[~np.isnan(values)]
            if not len(there):
                continue
            mean, median = float(there.mean()), float(np.median(there))
            p10, p90 = np.percentile(there, [10, 90]).tolist()
            found.append(ActionSpread(
                class_name(cls), stage, len(there), median, mean, p10, p90,
                float(there.std()) / mean if mean else 0.0, _drift(run, values),
                int(np.count_nonzero(there >= OUTLIER * median)),
            ))  # fmt: skip
    return tuple(found)


def _drift(run: Run, values: Times) -> float:
    """Return the rise of a line through the medians of all steps, over its first value."""
    steps, place = run.step_of
    if len(steps) < 3:
        return 0.0
    median = np.nanmedian if np.isnan(values).any() else np.median
    medians = np.empty(len(steps))
    rows, counts = np.argsort(place, kind="stable"), np.bincount(place)
    first = np.cumsum(counts) - counts
    for count in np.unique(counts).tolist():
        some = np.flatnonzero(counts == count)
        mine = rows[first[some, None] + np.arange(count)]
        medians[some] = median(values[mine].reshape(len(some), -1), axis=1)
    slope, level = np.polyfit(np.arange(len(steps)), medians, 1)
    return float(slope * (len(steps) - 1) / level) if level > 0 else 0.0


def costs_of(replay: Replay, times: Times | None = None, typical: Times | None = None) -> Costs:
    """Return the medians as costs per action of a whole microbatch, in milliseconds.

    `times` of actions and `typical` ones of links replace the measured ones.
    """
    run = replay.run
    times = replay.times if times is None else times
    typical = replay.transfers.typical if typical is None else typical
    stages = run.schedule.stages
    values: dict[str, Any] = {}
    for cls in np.unique(run.cls[run.counted]).tolist():
        medians = [_median(run, times, (run.cls == cls) & (run.stage == s) & run.counted)
                   for s in range(stages)]  # fmt: skip
        if cls != PAIR:
            values[KINDS[cls].cost] = _filled(medians)
            continue
        # By the stages of the first and the last member of each group.
        last, first = run.counted & (run.cls == PAIR), np.roll(run.stage, 1)
        pairs = set(zip(first[last].tolist(), run.stage[last].tolist(), strict=True))
        values["O"] = {
            (a, b): _short(_median(run, times, last & (first == a) & (run.stage == b)))
            for a, b in sorted(pairs)
        }
    used = typical[~np.isnan(typical)]
    if len(used) and used.max() > ALIKE * used.min():
        values["p2p"] = [[_short(v * MILLISECONDS) for v in row]
                         for row in as_matrix(typical)]  # fmt: skip
    elif len(used):
        values["p2p"] = _short(float(np.median(used)) * MILLISECONDS)
    # A kind that runs only within overlapped groups costs half of a group.
    if "F" not in values and "O" in values:
        values["F"] = _short(float(np.median(list(values["O"].values()))) / 3)
    return Costs(**values, time_unit="ms")


def _median(run: Run, times: Times, columns: np.ndarray) -> float:
    """Return the median of actions of one kind and stage: of each slice, summed over slices."""
    slices = run.schedule.slices
    parts = [times[:, columns & (run.unit % slices == part)] for part in range(slices)]
    if not all(part.size for part in parts):
        return float("nan")
    return float(sum(np.median(part) for part in parts)) * MILLISECONDS


def _filled(medians: list[float]) -> float | list[float]:
    """Return one number for each stage; a stage without a number has the mean of the others."""
    mean = float(np.nanmean(medians))
    return [_short(mean if value != value else value) for value in medians]


def cost_file(replay: Replay, spreads: tuple[ActionSpread, ...]) -> dict[str, Any]:
    """Return the data of a cost file: medians, and their spread under ``measured``."""
    run = replay.run
    data = costs_data(costs_of(replay))
    sizes = {"ranks": run.schedule.ranks, "microbatches": run.schedule.microbatches}
    if run.schedule.chunks > 1:
        sizes["chunks"] = run.schedule.chunks
    if not data.get("memory"):
        data.pop("memory", None)
    return {**sizes, **data, "measured": {"spread": [one.to_dict() for one in spreads]}}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
