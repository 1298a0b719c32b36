"""Tensors between ranks: groups of sends and receives that are posted at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.runtime.plan import Step
from debubble.runtime.world import RunError, World


@dataclass
class Arrival:
    """A receive that was posted."""

    step: Step
    position: int
    works: list[Any]
    buffer: Tensor
    header: Tensor | None


class Transport:
    """Point-to-point transfers of one rank.

    Transfers of a directed pair of ranks meet in the order in which they are posted. With `checks`
    every tensor comes behind a header that says what it is, so that a swap is noticed.
    """

    def __init__(self, world: World, dtype: torch.dtype, checks: bool) -> None:
        self.world, self.dtype, self.checks = world, dtype, checks
        self._wire = "cpu" if world.staged else world.device
        self._sending: list[tuple[Any, Sequence[Tensor]]] = []

    def post(
        self,
        sends: Sequence[tuple[Step, Tensor]],
        receives: Sequence[tuple[int, Step, Sequence[int]]],
    ) -> list[Arrival]:
        """Post a group: sends with their tensors, receives with position and shape."""
        operations: list[Any] = []
        kept: list[Tensor] = []
        for step, tensor in sends:
            parts = [tensor.detach().to(self._wire).contiguous()]
            if self.checks:
                parts.insert(0, self._header(step))
            operations += [dist.P2POp(dist.isend, part, step.peer) for part in parts]
            kept += parts
        arrivals: list[Arrival] = []
        begins = []
        for position, step, shape in receives:
            begins.append(len(operations))
            buffer = torch.empty(*shape, dtype=self.dtype, device=self._wire)
            header = self._header(step) if self.checks else None
            if header is not None:
                operations.append(dist.P2POp(dist.irecv, header, step.peer))
            operations.append(dist.P2POp(dist.irecv, buffer, step.peer))
            arrivals.append(Arrival(step, position, [], buffer, header))
        works = dist.batch_isend_irecv(operations) if operations else []
        # NCCL makes one piece of work of the group, gloo one of every operation.
        single = len(works) != len(operations)
        for arrival, begin in zip(arrivals, begins, strict=True):
            arrival.works = works if single else works[begin : begin + 1 + self.checks]
        sent = works if single else works[: len(kept)]
        self._sending = [entry for entry in self._sending if not entry[0].is_completed()]
        self._sending += [(work, kept) for work in sent] if kept else []
        return arrivals

    def receive(self, arrival: Arrival) -> Tensor:
        """Wait for a tensor."""
        for work in arrival.works:
            work.wait()
        if arrival.header is not None:
            self._compare(arrival)
        return arrival.buffer.to(self.world.device)

    def flush(self) -> None:
        """Wait until everything is sent."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()

    def _header(self, step: Step) -> Tensor:
        values = [int(step.kind), step.stage, step.unit]
        return torch.tensor(values, dtype=torch.int64, device=self._wire)

    def _compare(self, arrival: Arrival) -> None:
        assert arrival.header is not None
        kind, stage, unit = arrival.header.tolist()
        wanted = arrival.step
        sent = wanted._replace(kind=type(wanted.kind)(kind), stage=stage, unit=unit)
        expected = wanted.other_end
        if (kind, stage, unit) != (expected.kind, expected.stage, expected.unit):
            raise RunError(
                f"{wanted} got {sent} from rank {wanted.peer} in place of {expected}: sends and "
                "receives of these two ranks are in different orders"
            )
