"""What ranks do together: sum gradients of copies of the model, agree before optimizer steps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.core.schedule import Schedule
from debubble.runtime.weights import Weights


class Unions:
    """Process groups of the ranks that hold the same stage.

    Parameters
    ----------
    schedule
        All ranks make the same unions, in the same order.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._sync = schedule.sync
        table = schedule.placement.table
        homes = [tuple(sorted({row[stage] for row in table})) for stage in range(schedule.stages)]
        groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(homes)) if ranks[1:]}
        self._groups = {stage: groups.get(ranks) for stage, ranks in enumerate(homes)}
        self._chain = dist.new_group(backend="gloo") if self._sync == "post-validation" else None

    def sum(self, own: dict[tuple[int, int], Weights]) -> dict[tuple[int, int], Weights]:
        """Gradients by (copy, stage), those of a stage summed over its copies everywhere."""
        result: dict[tuple[int, int], Weights] = {}
        # Every rank takes the stages in ascending order, so that no two wait for each other.
        for stage in sorted({stage for _, stage in own}):
            places = [place for place in own if place[1] == stage]
            total = own[places[0]]
            for place in places[1:]:
                total = {name: value + own[place][name] for name, value in total.items()}
            group = self._groups.get(stage)
            if group is not None and total:
                flat = torch.cat([value.flatten() for value in total.values()])
                dist.all_reduce(flat, group=group)
                parts = flat.split([value.numel() for value in total.values()])
                total = {
                    name: part.view_as(value)
                    for (name, value), part in zip(total.items(), parts, strict=True)
                }
            result |= dict.fromkeys(places, total)
        return result

    def agree(self) -> None:
        """Wait for what an optimizer step waits for, see ``sync`` of a schedule."""
        if self._sync == "global":
            dist.barrier()
        elif self._chain is not None:
            # The partial norm goes from rank to rank.
            norm: Tensor = torch.zeros(1)
            rank, size = dist.get_rank(), dist.get_world_size()
            if rank > 0:
                dist.recv(norm, rank - 1, group=self._chain)
            if rank < size - 1:
                dist.send(norm, rank + 1, group=self._chain)
