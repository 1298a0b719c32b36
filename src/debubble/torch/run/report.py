"""Report of a run: equality of gradients, and measured against predicted times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from debubble.core.actions import unpack
from debubble.core.schedule import Schedule, sizes
from debubble.core.units import amount
from debubble.engine.timeline import Timeline
from debubble.torch.measure.recorded import RecordedSteps, computations
from debubble.torch.run.verify import Verification

DEVIATIONS = 3
"""Slowest actions that a text names."""

RUNTIMES = {"torch": "PyTorch's pipeline runtime", "debubble": "debubble's executor"}

CONVENTIONS = {
    "times": "seconds; an action begins when its inputs are there",
    "makespan": "last end minus first start over all ranks, median over steps",
    "predicted": "simulation with the measured median time of every kind and stage, plus the "
    "overhead per action",
    "predicted_sleep": "simulation with the times that actions sleep, plus the overhead per action",
    "overhead": "per action, calibrated on a short 1f1b",
    "rate": "microbatches per second in the median step",
    "actions": "rank, action, measured start and end, predicted start and end; the step of the "
    "median makespan",
    "loss": "mean over microbatches, in the dtype of the verification",
}


@dataclass(frozen=True, eq=False)
class RunReport:
    """A run of a schedule."""

    schedule: Schedule
    model: str
    runtime: str
    """``"torch"`` or ``"debubble"``."""
    sleep: float | None
    """Seconds of the shortest action when actions slept, else None."""
    verification: Verification | None
    """Comparison with the reference, None when there was none."""
    overhead: float | None
    """Seconds per action, None when nothing was measured."""
    measured: RecordedSteps | None
    predicted: Timeline | None
    """As `measured`: times of every action, None when nothing was measured."""
    note: str = ""
    """Warning about the times, empty for none."""
    dtype: str = "float32"
    """Type of numbers when times were measured."""
    costs: Mapping[str, Any] = field(default_factory=dict)
    """Measured costs as the data of a cost file."""
    peaks: Sequence[int] = ()
    """Peak memory in bytes by rank; empty where the device does not count it."""
    whole: Mapping[int, str] = field(default_factory=dict)
    """By stage, the reason why its backward was not split in I and W as scheduled."""

    @property
    def equal(self) -> bool:
        """If no gradient was found to differ."""
        return self.verification is None or self.verification.equal

    @property
    def error(self) -> float:
        """(measured − predicted) / predicted makespan."""
        measured, predicted = self._timed
        return measured.makespan / predicted.makespan - 1

    @property
    def _timed(self) -> tuple[RecordedSteps, Timeline]:
        """Measurement and prediction, where there are some."""
        assert self.measured is not None, "used only where something was measured"
        assert self.predicted is not None, "there is a prediction with every measurement"
        return self.measured, self.predicted

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        schedule = self.schedule
        data: dict[str, Any] = {
            "schedule": schedule.name,
            **sizes(schedule, "ranks", "chunks", "stages", "microbatches", "iterations", "slices"),
            "model": self.model, "runtime": self.runtime, "sleep": self.sleep,
            "verification": self.verification and self.verification.to_dict(),
        }  # fmt: skip
        words = dict(CONVENTIONS)
        slept = words.pop("predicted_sleep")
        words |= {} if self.sleep is None else {"predicted": slept}
        if self.measured is not None and self.predicted is not None:
            step = self.measured.typical
            data |= {
                "overhead": self.overhead,
                "steps": len(self.measured.makespans),
                "measured": {
                    "makespan": self.measured.makespan,
                    "makespans": self.measured.makespans.tolist(),
                    **self._ranks(self.measured.starts[step], self.measured.ends[step]),
                },
                "predicted": {
                    "makespan": self.predicted.makespan,
                    **self._ranks(self.predicted.start, self.predicted.end),
                },
                "error": self.error,
                "dtype": self.dtype,
                "rate": self._rate,
                "actions": self._actions(),
            }
            if self.peaks:
                data["peak_memory"] = list(self.peaks)
        if self.whole:
            data["not_split"] = {str(stage): why for stage, why in sorted(self.whole.items())}
        if self.note:
            data["note"] = self.note
        return data | {"conventions": words}

    def _ranks(self, start: Any, end: Any) -> dict[str, list[float]]:
        """Return stage time and work of every rank; a pair counts once."""
        stage_time, busy = [], []
        compute = computations(self.schedule)
        offsets = self.schedule.offsets
        for rank in range(self.schedule.ranks):
            here = compute[(compute >= offsets[rank]) & (compute < offsets[rank + 1])]
            begins, first = np.unique(start[here], return_index=True)
            stage_time.append(float(end[here].max() - begins.min()) if len(here) else 0.0)
            busy.append(float((end[here][first] - begins).sum()))
        return {"stage_time": stage_time, "busy": busy}

    def _actions(self) -> list[list[Any]]:
        measured, predicted = self._timed
        step = measured.typical
        columns = (measured.starts[step], measured.ends[step], predicted.start, predicted.end)
        return [
            [self.schedule.rank_of(position), str(unpack(int(self.schedule.actions[position]))),
             *(round(float(column[position]), 6) for column in columns)]
            for position in computations(self.schedule).tolist()
        ]  # fmt: skip

    def __str__(self) -> str:
        schedule = self.schedule
        lines = [
            f"{schedule.name}: {schedule.ranks} ranks, {schedule.stages} stages, "
            f"{schedule.microbatches} microbatches",
            f"{self.model} on {RUNTIMES[self.runtime]}",
        ]
        if self.verification is not None:
            lines += ["", *_gradients(self.verification)]
        lines += [f"stage {stage}: I does the whole backward, and W nothing: {why}"
                  for stage, why in sorted(self.whole.items())]  # fmt: skip
        if self.measured is not None and self.predicted is not None:
            lines += ["", *self._times()]
        return "\n".join(lines)

    def _times(self) -> list[str]:
        found, simulated = self._timed
        assert self.overhead is not None
        step, spans = found.typical, found.makespans * 1e3
        measured = self._ranks(found.starts[step], found.ends[step])
        predicted = self._ranks(simulated.start, simulated.end)
        lines = [self.note, ""] if self.note else []
        lines.append(f"{'ms':<11} {'predicted':>10} {'measured':>10} {'error':>8}")
        rows = [("makespan", simulated.makespan, found.makespan)]
        pairs = zip(predicted["stage_time"], measured["stage_time"], strict=True)
        rows += [(f"rank {rank}", *pair) for rank, pair in enumerate(pairs)]
        for name, expected, took in rows:
            error = f"{100 * (took / expected - 1):+6.1f} %" if expected else f"{'–':>8}"
            lines.append(f"{name:<11} {expected * 1e3:>10.1f} {took * 1e3:>10.1f} {error}")
        lines += [
            "",
            f"steps       {len(spans)}, median {np.median(spans):.1f} ms, {spans.min():.1f} to "
            f"{spans.max():.1f} ms; {self._rate:.4g} microbatches/s in {self.dtype}",
            f"overhead    {self.overhead * 1e3:.2f} ms per action",
            f"slowest     {'; '.join(self._slowest())}",
        ]
        if self.peaks:
            most = max(range(len(self.peaks)), key=self.peaks.__getitem__)
            peak = amount(self.peaks[most], "bytes")
            lines.append(f"memory      at most {peak}, on rank {most}")
        return [*lines, "rank: from its first start to its last end"]

    @property
    def _rate(self) -> float:
        """Microbatches per second."""
        count = self.schedule.microbatches * self.schedule.iterations
        return count / self._timed[0].makespan

    def _slowest(self) -> list[str]:
        """Return the actions that took longest beyond their prediction."""
        measured, predicted = self._timed
        took = (measured.ends - measured.starts)[measured.typical]
        compute = computations(self.schedule)
        wanted = predicted.duration - (self.overhead or 0.0)
        beyond = (took - wanted)[compute]
        worst = compute[np.argsort(-beyond, kind="stable")[:DEVIATIONS]]
        return [
            f"{unpack(int(self.schedule.actions[position]))} {took[position] * 1e3:.1f} ms for "
            f"{wanted[position] * 1e3:.1f}"
            for position in worst.tolist()
        ]


def _gradients(checked: Verification) -> list[str]:
    sizes = f"{checked.gradient_error:.2g}, relative {checked.relative_error:.2g}"
    verdict = f"all {checked.tensors} equal; largest error {sizes}"
    if checked.dtype != "float64":
        verdict += (
            f"; compared in {checked.dtype} within {checked.tolerance:g}, as the model has no "
            "kernels for float64"
        )
    if not math.isfinite(checked.reference_loss):
        verdict = "cannot be compared: the model's loss is not finite without a pipeline, either"
    elif checked.random:
        verdict = (
            "the model is random (dropout?); gradients cannot be compared. Return modules in eval "
            "mode, or use --no-verify"
        )
    elif not checked.equal:
        verdict = f"NOT EQUAL: largest error {sizes}, in {checked.worst}"
    return [
        f"loss        {checked.loss:.9g}, without pipeline {checked.reference_loss:.9g}",
        f"gradients   {verdict}",
    ]
