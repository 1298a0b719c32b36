"""Scaled losses for float16: one scale for all ranks of a pipeline, and one overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.core.errors import ParameterError
from debubble.torch.pipeline import Pipeline


class GradScaler(torch.amp.GradScaler):
    """PyTorch's ``GradScaler`` for a pipeline, which runs the backwards itself.

    While it is there, :meth:`Pipeline.step` computes the gradients of the scaled loss, and returns
    the loss itself. What overflows on one rank makes all skip the same step.

    Parameters
    ----------
    pipe
        The pipeline; all its ranks make the scaler, and call its methods together.
    group
        A further process group that has to agree, where gradients are sharded over replicas of the
        pipeline by ``fully_shard``; those that DDP averages are the same anyway.
    **options
        As of ``torch.amp.GradScaler``: ``init_scale``, ``growth_interval``, …

    Raises
    ------
    ParameterError
        When options differ from rank to rank.

    Examples
    --------
    >>> scaler = dt.GradScaler(pipe)  # doctest: +SKIP
    >>> with torch.autocast("cuda", torch.float16):  # doctest: +SKIP
    ...     loss = pipe.step(x, target=y)
    >>> scaler.unscale_(optimizer)  # doctest: +SKIP
    >>> pipe.clip_grad_norm_(1.0)  # doctest: +SKIP
    >>> scaler.step(optimizer)  # doctest: +SKIP
    >>> scaler.update()  # doctest: +SKIP
    """

    def __init__(
        self, pipe: Pipeline, *, group: dist.ProcessGroup | None = None, **options: Any
    ) -> None:
        if not isinstance(pipe, Pipeline):
            raise ParameterError(f"pipe is {type(pipe).__name__}; give a debubble.torch.Pipeline")
        self._team, self._watch, self._group = pipe._team, pipe._watch, group
        device = pipe._team.device
        super().__init__(device.type, **options)
        # PyTorch's begins with the first loss, which is on one rank.
        super().scale(torch.zeros((), device=device))
        pipe._feed.scaler = self

    def scale(self, outputs: Any) -> Any:
        """Refuse what has no graph: the backwards of a pipeline are over when there is its loss.

        Raises
        ------
        ParameterError
            Always, while the scaler is enabled.
        """
        if not self.is_enabled():
            return outputs
        raise ParameterError(
            "pipe.step() has computed the gradients of the scaled loss already; leave out "
            "scaler.scale(loss).backward()"
        )

    def _unscale_grads_(self, *args: Any, **kwargs: Any) -> dict[torch.device, Tensor]:
        # Every way to look for overflows leads here, with gradients or without.
        found = super()._unscale_grads_(*args, **kwargs)
        total = torch.zeros(1, device=self._team.wire)
        for part in found.values():
            total += part.to(total)
        with self._watch.step():
            self._watch.set_waiting()
            self._team.total(total)
            if self._group is not None:
                dist.all_reduce(total, group=self._group)
        device = self._team.device
        return {device: total[0].clamp(max=1.0).to(device)}
