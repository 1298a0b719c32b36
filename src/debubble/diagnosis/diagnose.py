"""Diagnosis of a run: from its observed actions to causes and gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from debubble.core.costs import Costs
from debubble.core.errors import FormatError
from debubble.core.schedule import Schedule
from debubble.diagnosis.account import RankAccount, account
from debubble.diagnosis.candidates import Causes, find_causes, saved_by_waits, worst_of_copies
from debubble.diagnosis.clocks import Clocks, align
from debubble.diagnosis.costs_only import has_only_costs
from debubble.diagnosis.findings import TRUSTED, Finding, find
from debubble.diagnosis.make_run import run_of
from debubble.diagnosis.observed import Observed, Times
from debubble.diagnosis.order import Orders, reconstruct
from debubble.diagnosis.readers.whole_steps import PARTS
from debubble.diagnosis.replay import Replay
from debubble.diagnosis.run import Run, without_waits
from debubble.diagnosis.schedule_names import ScheduleName
from debubble.diagnosis.slowdown import Slowdown, slowdown
from debubble.diagnosis.times import ActionSpread, cost_file, costs_of, spreads_of
from debubble.diagnosis.transfers import transfers_of
from debubble.diagnosis.what_if import WhatIf, faster
from debubble.engine.measured_timeline import measured_timeline
from debubble.engine.timeline import Timeline


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """Diagnosis of a run: its schedule, causes of lost time, and their gains.

    Parameters
    ----------
    observed
        Content of the trace.
    name
        Name of the schedule.
    clocks
        Clocks of ranks against each other.
    replay
        The analyzed steps on one clock, ready for replay.
    left_out
        Numbers of unused things in the trace, by reason.
    """

    observed: Observed
    name: ScheduleName
    clocks: Clocks
    replay: Replay
    left_out: Mapping[str, int]

    @property
    def run(self) -> Run:
        """The analyzed steps, as arrays on one clock."""
        return self.replay.run

    @property
    def schedule(self) -> Schedule:
        """Schedule that ran, under its own name or the nearest one."""
        return self.run.schedule

    @cached_property
    def costs(self) -> Costs:
        """Median time of every kind on every stage, and of every link, in milliseconds."""
        return costs_of(self.replay)

    @cached_property
    def spreads(self) -> tuple[ActionSpread, ...]:
        """Spread of the times of each kind and stage."""
        return spreads_of(self.run)

    @cached_property
    def slowdown(self) -> Slowdown:
        """Slowdown against the same run without stragglers."""
        return slowdown(self.replay)

    @cached_property
    def causes(self) -> Causes:
        """All causes found, with any gain."""
        return find_causes(self.replay, self.name.nearest)

    @cached_property
    def accounts(self) -> tuple[RankAccount, ...]:
        """Time of every rank by cause."""
        causes = self.causes
        worst = worst_of_copies(causes, self.slowdown)
        saved = saved_by_waits(self.replay, causes)
        return account(self.replay, causes.excess, causes.slow_link, worst, saved)

    @cached_property
    def _found(self) -> tuple[tuple[Finding, ...], float]:
        return find(self.replay, self.causes, self.accounts)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Causes of lost time, the one with the largest gain first."""
        return self._found[0]

    @property
    def beyond(self) -> float:
        """Largest gain of a cause that is no finding, as a share of the step."""
        return self._found[1]

    @property
    def replay_error(self) -> float:
        """Median error of replayed step times, as a share."""
        return self.replay.error

    @property
    def model_error(self) -> float:
        """Error of a model of the run, as a share of a step.

        In the model, actions and messages take their median times, and no host is late.
        """
        return self.replay.model_error

    @property
    def mode(self) -> tuple[str, float]:
        """P2p mode that explains the starts of actions best, and their mean distance from it.

        The distance is a share of a typical action.
        """
        return self.replay.mode.name, self.replay.transfers.off

    @cached_property
    def bubble_ratio(self) -> float:
        """Idle share of the rank-time of all analyzed steps."""
        return 1 - self._share(self.run.duration)

    @cached_property
    def idle_inside(self) -> float:
        """Share of the rank-time in which devices are idle inside actions, as far as is known."""
        return self._share(np.nan_to_num(np.maximum(self.run.duration - self.run.busy, 0.0)))

    def _share(self, times: Times) -> float:
        """Return the share of times of actions in the rank-time of all analyzed steps."""
        run = self.run
        spent = np.where(run.counted & run.known, times, 0.0).sum()
        _, place = run.step_of
        return float(spent / (run.step_times[place] * run.traced.sum(axis=1)).sum())

    @property
    def shown(self) -> int:
        """Row of the drawing: the slowest copy in the step of median length."""
        return self.run.shown

    @cached_property
    def timeline(self) -> Timeline:
        """Observed timeline of the step of median length on its slowest copy, in milliseconds."""
        run, row = self.run, self.shown
        schedule, column = run.order_of(row)
        start = (run.start[row, column] - run.begin[row]) * 1e3
        end = (run.end[row, column] - run.begin[row]) * 1e3
        if np.isnan(start).any():
            raise FormatError("nothing was traced of a rank: there is no timeline of all ranks")
        return measured_timeline(schedule, start, end, Costs(time_unit="ms"))

    @cached_property
    def predicted(self) -> Timeline:
        """Timeline of a model of the run, in milliseconds: median times, in the p2p mode."""
        return self.replay.modeled

    @cached_property
    def planned_bubble_ratio(self) -> float:
        """Idle share of the rank-time in a model of the run."""
        times, _ = self.replay.model_times()
        busy = times[self.run.counted].sum()
        return float(1 - busy / (self.replay.plan * self.schedule.ranks))

    @property
    def plan(self) -> float:
        """Predicted time of a step at median times, in seconds."""
        return self.replay.plan

    @cached_property
    def faster(self) -> tuple[WhatIf, ...]:
        """Other schedules with shorter steps at the run's times, the fastest first."""
        return tuple(faster(self.replay)) if self.replay_error <= TRUSTED else ()

    def cost_file(self) -> dict[str, Any]:
        """Return the costs as data of a cost file."""
        return cost_file(self.replay, self.spreads)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        schedule, slow = self.schedule, self.slowdown
        return {
            "format": self.observed.format,
            "ranks": schedule.ranks,
            "copies": self.observed.copies,
            "stages": schedule.stages,
            "microbatches": schedule.microbatches,
            "steps": len(self.run.step_times),
            "step": float(self.run.step_times.mean()),
            "bubble_ratio": self.bubble_ratio,
            "plan": {
                "step": self.plan,
                "bubble_ratio": self.planned_bubble_ratio,
            },
            "schedule": {"name": self.name.text, "differences": list(self.name.differences)},
            "costs": self.cost_file(),
            "slowdown": {
                "total": slow.total, "stage": list(slow.stage), "rank": list(slow.rank),
                "copy": list(slow.copy), "kind": slow.kind, "last_stage": slow.last_stage,
                "slowest_workers": slow.slowest_workers,
            },
            "account": [
                {"rank": one.rank, "compute": one.compute, "causes": one.causes, "step": one.step}
                for one in self.accounts
            ],
            "findings": [finding.to_dict() for finding in self.findings],
            "clocks": [
                {"ranks": list(one.ranks), "interval": [_finite(one.low), _finite(one.high)],
                 "iteration": one.step}
                for one in self.clocks.intervals
            ],
            "replay_error": self.replay_error,
            "model_error": self.model_error,
            "left_out": dict(self.left_out),
        }  # fmt: skip

    def __repr__(self) -> str:
        first = f": {self.findings[0].cause}" if self.findings else ""
        return (
            f"<Diagnosis {self.name.text}: {len(self.run.step_times)} steps on "
            f"{self.schedule.ranks} ranks, {len(self.findings)} findings{first}>"
        )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def diagnose(observed: Observed) -> Diagnosis:
    """Diagnose a run: find the causes of its lost time.

    Raises
    ------
    FormatError
        When no step is complete.
    """
    orders: Orders = reconstruct(observed)
    run = run_of(observed, orders)
    clocks = align(run)
    run = run.moved(clocks.offsets, clocks.rates)
    if observed.waits_inside:
        run = without_waits(run)
    left_out = dict(observed.left_out) | orders.left_out
    # The reader has already counted ranks that lack actions.
    counted = sum(count for reason, count in left_out.items() if reason.startswith(PARTS))
    if len(run.missing) > counted:
        left_out["ranks of which nothing was traced"] = len(run.missing) - counted
    warm = run.warm
    if not warm.all():
        left_out["steps of a copy that are warm-up"] = int(np.count_nonzero(~warm))
        run = run.taken(warm)
    return Diagnosis(observed, orders.name, clocks, Replay(run, transfers_of(run)), left_out)


def read_trace(path: str | Path, *, format: str | None = None) -> Diagnosis:
    """Read the traces of a run, and diagnose it.

    Parameters
    ----------
    path
        A folder with a file for every rank, or one file with all of them; ``docs/trace.md`` lists
        the formats.
    format
        Name of the format, ``"kineto"`` for instance; None to detect it from the files.

    Returns
    -------
    Diagnosis
        With ``schedule``, ``costs``, ``findings`` and ``timeline``; ``to_dict()`` is
        the output of ``debubble trace --json``.

    Raises
    ------
    FormatError
        When nothing in it can be read.
    """
    from debubble.diagnosis.readers.folder import read

    observed = read(Path(path), format=format)
    if has_only_costs(observed):
        raise FormatError(
            f"{path}: sums of times that say nothing of causes; 'debubble trace {path} --costs-out "
            "costs.yaml' writes the costs that they are"
        )
    return diagnose(observed)
