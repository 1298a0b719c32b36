"""What a diagnosis of a faulty run says, next to what the same job takes without the fault."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tests.command import call
from tests.diagnosis.experiments.catalog import Experiment
from tests.diagnosis.experiments.jobs import Job
from tests.diagnosis.experiments.runs import Ran


@dataclass(frozen=True)
class Outcome:
    """Result of an experiment; times in seconds, gains as shares of a step.

    Parameters
    ----------
    healthy, faulty
        Measured time of a step without and with the fault.
    after
        Predicted time without the fault.
    found
        First finding; None without one.
    """

    experiment: Experiment
    healthy: float
    faulty: float
    after: float
    found: dict[str, Any] | None

    @property
    def gain(self) -> float:
        """True gain of removing the fault."""
        return 1 - self.healthy / self.faulty

    @property
    def told(self) -> float:
        """Gain of the first finding; NaN without one."""
        gain = None if self.found is None else self.found["gain"]
        return math.nan if gain is None else float(gain)

    @property
    def what_if_holds(self) -> bool:
        """Whether the what-if gives the time of the healthy run."""
        return abs(self.after / self.healthy - 1) <= self.experiment.bound

    @property
    def gain_holds(self) -> bool:
        """Whether the first finding promises the true gain."""
        return abs(self.told - self.gain) <= self.experiment.bound

    @property
    def named(self) -> bool:
        """Whether the first finding is the fault, and at its place."""
        if self.found is None or self.found["cause"] != self.experiment.cause:
            return False
        where = self.found["where"]
        return all(where.get(key) == value for key, value in self.experiment.where.items())

    @property
    def right(self) -> bool:
        """Whether all of it is right."""
        return self.named and self.what_if_holds and self.gain_holds


def outcome(experiment: Experiment, healthy: Ran, faulty: Ran) -> Outcome:
    """Diagnose a faulty run."""
    changes = experiment.changes(computed(experiment.job, healthy))
    sets = [word for change in changes for word in ("--set", change)]
    data = call("trace", faulty.trace, *sets, "--json").data
    # What is before the first action of a step and behind its last one is in neither trace.
    outside = faulty.step - data["step"]
    first = data["findings"][0] if data["findings"] else None
    return Outcome(
        experiment, healthy.step, faulty.step, data["what_if"][0]["after"] + outside, first
    )


def computed(job: Job, healthy: Ran) -> float:
    """Return the seconds that a forward with its backward computes, beside its sleep."""
    data = call("trace", healthy.trace, "--json").data
    busy = sum(rank["compute"] for rank in data["account"])
    return float(busy / (data["stages"] * job.microbatches) - job.forward - job.backward)
