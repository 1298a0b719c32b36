"""Gradients at the end of a step: sums of tied weights, averages over replicas, norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from debubble.core.errors import ParameterError
from debubble.torch.autograd.tied_weights import (
    TiedWeights,
    add_gradient,
    flatten_parts,
    local,
    split_parts,
)
from debubble.torch.models.modules import is_dtensor, is_sharded
from debubble.torch.ranks.process_group import Ranks


class Gradients:
    """The gradients of one rank's stages, with those of weights that several ranks have."""

    def __init__(self, modules: Mapping[int, nn.Module], tied: TiedWeights) -> None:
        self.modules, self._tied = modules, tied
        self._replicated = {
            stage: module for stage, module in modules.items()
            if isinstance(module, DistributedDataParallel)
        }  # fmt: skip
        weights = [one.parameter for one in tied.shared]
        weights += [w for module in self._replicated.values() for w in module.parameters()]
        self._aside = list({id(weight): weight for weight in weights}.values())
        aside = {id(weight) for weight in self._aside}
        # fully_shard replaces its own parameters by others while they are gathered.
        self._places = [
            (stage, part, name, own)
            for stage, module in modules.items() for part in module.modules()
            for name, own in part.named_parameters(recurse=False)
            if id(own) in aside and not is_dtensor(own)
        ]  # fmt: skip
        self._before: dict[int, Tensor | None] = {}
        self._averaged: set[int] = set()

    def start(self) -> None:
        """Begin a step: gradients of earlier ones are neither summed nor averaged again.

        Raises ParameterError when a parameter that is summed or averaged is no longer the module's.
        """
        for stage, part, name, own in self._places:
            if getattr(part, name, None) is not own:
                raise ParameterError(
                    f"stage {stage} has another {name} than when its pipeline was made, and other "
                    "ranks have this weight, too; make a new Pipeline for it"
                )
        self._averaged.clear()
        self._before = {id(weight): weight.grad for weight in self._aside}
        for weight in self._aside:
            weight.grad = None

    def reduce(self, stage: int) -> None:
        """Average gradients over the replicas of a stage, once in a step."""
        module = self._replicated.get(stage)
        if module is None or stage in self._averaged:
            return
        self._averaged.add(stage)
        group = module.process_group
        size = dist.get_world_size(group)
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        for dtype in sorted({weight.dtype for weight in weights}, key=str):
            some = [weight for weight in weights if weight.dtype == dtype]
            row = flatten_parts(some, [weight.grad for weight in some])
            dist.all_reduce(row, group=group)
            for weight, total in split_parts(row, some):
                weight.grad = total / size

    def finish(self) -> None:
        """End a step: average over replicas, and sum over ranks."""
        for stage in sorted(self._replicated):
            self.reduce(stage)
        shared = {id(one.parameter): one.parameter for one in self._tied.shared}
        new = {key: weight.grad for key, weight in shared.items()}
        for weight in self._aside:
            before = self._before[id(weight)]
            if id(weight) in shared:
                weight.grad = before
            elif before is not None:
                part, weight.grad = weight.grad, before
                if part is not None:
                    add_gradient(weight, local(part))
        self._before = {}
        self._tied.sum(new)

    def clip(self, weights: Iterable[Tensor], largest: float, kind: float, ranks: Ranks) -> Tensor:
        """Scale gradients so that their norm over all ranks is at most `largest`.

        Returns the norm before. The `weights` are all parameters of this rank; of a weight that
        several ranks have only the first one counts. The `kind` is 2 for the Euclidean norm,
        infinity for the largest number.
        """
        elsewhere = {id(one.parameter) for one in self._tied.shared if one.source != ranks.rank}
        there = {id(weight): weight.grad for weight in weights if weight.grad is not None}
        norm = torch.zeros((), dtype=torch.float64)
        for gradient in (gradient for key, gradient in there.items() if key not in elsewhere):
            part = torch.linalg.vector_norm(gradient, kind)
            if is_dtensor(part):
                part = part.full_tensor()
            value = part.detach().to("cpu", torch.float64)
            norm = torch.maximum(norm, value) if kind == float("inf") else norm + value**kind
        ranks.channel.sum(norm, largest=kind == float("inf"))
        norm = norm if kind == float("inf") else norm ** (1 / kind)
        factor = min(1.0, largest / (float(norm) + 1e-6))
        if factor < 1.0:
            for gradient in there.values():
                gradient.mul_(factor)
        return norm


def set_last_backward(module: nn.Module, last: bool) -> None:
    """Let ``fully_shard`` exchange gradients and drop weights after the last backward of a step."""
    for part in module.modules():
        if is_sharded(part):
            part.set_is_last_backward(last)
            part.set_reshard_after_backward(last)
            part.set_requires_gradient_sync(last)
