"""Measurements that a pipeline in a training loop gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.measured_timeline import measured_timeline
from debubble.engine.timeline import Timeline
from debubble.torch.measure.recorded import RecordedSteps
from debubble.torch.ranks.process_group import Ranks


class Measured(ABC):
    """A pipeline whose latest steps are recorded on all ranks."""

    schedule: Schedule
    """The schedule that runs."""
    _ranks: Ranks

    @abstractmethod
    def _recorded(self, call: str) -> RecordedSteps:
        """Return the latest steps of all ranks, for a call of that name."""

    def costs(self) -> Costs:
        """Return measured costs of the latest steps: medians by kind and stage, in ms."""
        return self._recorded("costs").costs()

    def step_times(self) -> NDArray[np.float64]:
        """Return the times of the latest steps but the first, last end − first start, in ms."""
        return self._recorded("step_times").makespans[1:] * 1e3

    def timeline(self) -> Timeline:
        """Return the latest step as measured, in ms."""
        last = self._recorded("timeline")
        start, end = last.starts[-1] * 1e3, last.ends[-1] * 1e3
        return measured_timeline(self.schedule, start, end, Costs(time_unit="ms"))

    def trace(self, path: str | Path) -> None:
        """Write the latest step as a trace file for Perfetto, from rank 0.

        A message is two asynchronous slices of the category ``transfer``: ``0SEND_F1`` on the
        sender, from when the send is posted to when it is complete, and ``1RECV_F1`` on the
        receiver, from when the receive is posted to when the tensors are there (with PyTorch's
        engine, to the start of the action that reads them). ``args`` has the number of the message
        (``transfer``) and its ranks (``from``, ``to``); the receiver's also has ``waited``, when an
        action began to wait for it. ``otherData.hosts`` names the host of every rank; all times
        are on the clock of rank 0.
        """
        steps = self._recorded("trace")
        if self._ranks.rank == 0:
            steps.save_trace(path, -1)
