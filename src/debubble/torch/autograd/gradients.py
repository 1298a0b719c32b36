"""Gradients at the end of a step, and weights of several ranks: of copies, and tied ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.torch.engine.vocabulary import LAYERS
from debubble.torch.errors import RunError
from debubble.torch.models.modules import bare, is_dtensor, is_sharded, names_of
from debubble.torch.ranks.process_group import Ranks


@dataclass(frozen=True, eq=False)
class SharedWeight:
    """A parameter that several ranks have."""

    name: str
    """Its name in its first stage."""
    parameter: Tensor
    """This rank's parameter."""
    ranks: tuple[int, ...]
    """All ranks that have it, in ascending order."""
    source: int
    """Rank whose values count."""


def find_shared_weights(
    modules: Mapping[int, nn.Module],
    schedule: Schedule,
    ranks: Ranks,
    shared: Iterable[Sequence[str]],
    same: Iterable[Sequence[str]],
) -> list[SharedWeight]:
    """Return the parameters that several ranks have, on all ranks.

    The user names tied weights in `shared`; those in `same` were found, as names of one object: a
    weight may have several in one stage, too. Raises ParameterError when a name is not known,
    shapes differ, or a model has tied weights that cannot be found.
    """
    shared = list(shared)
    if any(isinstance(tie, str) for tie in shared):
        raise ParameterError(
            f'shared is {shared!r}; give pairs: shared=[("0.embed.weight", "7.head.weight")]'
        )
    own = names_of(modules)
    facts = {
        name: (tuple(weight.shape), str(weight.dtype).removeprefix("torch."), weight.requires_grad)
        for name, weight in own.items()
    }
    wrong = [tie for tie in shared if len(tie) < 2]
    if wrong:
        raise ParameterError(
            f"shared has {wrong[0]!r}; give pairs of names, for instance "
            'shared=[("0.embed.weight", "7.head.weight")]'
        )
    ties = [tuple(map(str, tie)) for tie in (*shared, *same)]
    tied = "" if shared else _tied_by_config(modules)
    found = ranks.channel.gather((facts, ties, tied))
    known = {name: fact for theirs, _, _ in found for name, fact in theirs.items()}
    classes = _classes(sorted({tie for _, each, _ in found for tie in each}), known)
    last = schedule.stages - 1
    for name in (name for members in classes for name in members):
        if schedule.vocabulary and name.split(".")[:-1] in ([str(last), one] for one in LAYERS):
            raise ParameterError(
                f"'{name}' is tied, and '{schedule.name}' cuts it along the vocabulary; tie "
                "nothing to it, or use a schedule that does not shard the output layer"
            )
    says = next((words for _, _, words in found if words), "")
    across = any(_stage(members[0]) != _stage(members[-1]) for members in classes)
    if says and not across and schedule.stages > 1:
        first_name, last_name = _likely(known, last)
        raise ParameterError(
            f"{says} has tie_word_embeddings=True, and single stages do not show which weights "
            f'that ties; name them, for instance shared=[("{first_name}", "{last_name}")], or set '
            "it to False"
        )
    first = {name: members[0] for members in classes for name in members}
    members_of = {members[0]: members for members in classes}
    result: dict[str, SharedWeight] = {}
    for name, weight in own.items():
        key = first.get(name, name)
        if key in result:
            if result[key].parameter is not weight:
                stage, _, path = name.partition(".")
                owner, _, leaf = path.rpartition(".")
                part = bare(modules[int(stage)]).get_submodule(owner)
                setattr(part, leaf, result[key].parameter)
            continue
        stages = [_stage(member) for member in members_of.get(key, (name,))]
        table = schedule.placement.table
        owners = sorted({row[stage] for row in table for stage in stages})
        result[key] = SharedWeight(key, weight, tuple(owners), table[0][min(stages)])
    return [one for one in result.values() if len(one.ranks) > 1]


def _likely(known: Mapping[str, Any], last: int) -> tuple[str, str]:
    """Return the names of the largest matrices of one shape in the first and the last stage."""
    pairs = [
        (math.prod(known[one][0]), one, other)
        for one in known if _stage(one) == 0
        for other in known if _stage(other) == last and known[one][:2] == known[other][:2]
        and len(known[one][0]) > 1
    ]  # fmt: skip
    most = max(pairs, key=lambda pair: pair[0], default=None)
    return most[1:] if most else ("0.embed_tokens.weight", f"{last}.lm_head.weight")


def _classes(ties: Sequence[Sequence[str]], known: Mapping[str, Any]) -> list[list[str]]:
    """Return lists of the names of one weight each, ordered by stage."""
    classes: list[set[str]] = []
    for tie in ties:
        for name in tie:
            if name not in known:
                raise ParameterError(
                    f"shared names '{name}', which no stage has; {did_you_mean(name, known)}"
                )
        shapes = {known[name][:2] for name in tie}
        if len(shapes) > 1:
            what = ", ".join(f"{name} {known[name][1]} {list(known[name][0])}" for name in tie)
            raise ParameterError(f"shared weights differ: {what}; tie weights of one shape")
        trains = sorted(tie, key=lambda name: known[name][2])
        if known[trains[0]][2] != known[trains[-1]][2]:
            raise ParameterError(
                f"shared weights differ: {trains[0]} is frozen and {trains[-1]} is not; set "
                "requires_grad of both alike"
            )
        joined = set(tie)
        for other in [other for other in classes if other & joined]:
            joined |= other
            classes.remove(other)
        classes.append(joined)
    return [sorted(each, key=lambda name: (_stage(name), name)) for each in classes]


def _stage(name: str) -> int:
    return int(name.partition(".")[0])


def _tied_by_config(modules: Mapping[int, nn.Module]) -> str:
    """Return a stage whose configuration ties embedding and head, empty for none."""
    for stage, module in modules.items():
        for part in module.modules():
            if getattr(getattr(part, "config", None), "tie_word_embeddings", False) is True:
                return f"stage {stage} ({type(part).__name__})"
    return ""


class TiedWeights:
    """Exchange of weights that several ranks have, and of their gradients."""

    def __init__(self, shared: Sequence[SharedWeight], ranks: Ranks) -> None:
        self.ranks = ranks
        self.shared = sorted(shared, key=lambda one: (one.ranks, one.name))
        self._groups = sorted({one.ranks for one in self.shared})

    def broadcast(self, modules: Mapping[int, nn.Module], schedule: Schedule) -> None:
        """Send the values of each weight from its first rank to the others."""
        with torch.no_grad():
            for one in self.shared:
                self._take(one.ranks, one.source, one.parameter)
            table = schedule.placement.table
            for stage in sorted(modules):
                owners = tuple(sorted({row[stage] for row in table}))
                if owners in self._groups:
                    for buffer in modules[stage].buffers():
                        self._take(owners, table[0][stage], buffer)

    def sum(self, contributions: Mapping[int, Tensor | None]) -> None:
        """Sum gradients, given by the parameter's id, and add them to the parameters' ``grad``.

        A parameter without a gradient on any rank gets none.
        """
        for owners in self._groups:
            ours = [one for one in self.shared if one.ranks == owners]
            for dtype in sorted({one.parameter.dtype for one in ours}, key=str):
                some = [one.parameter for one in ours if one.parameter.dtype == dtype]
                row = flatten_parts(some, [contributions[id(weight)] for weight in some])
                # Added in one order everywhere, so that all ranks get equal bits.
                total, *others = self.ranks.exchange(row.to(self.ranks.wire), owners)
                for other in others:
                    total = total + other
                for weight, part in split_parts(total.to(row.device), some):
                    add_gradient(weight, part.clone())

    def _take(self, owners: tuple[int, ...], source: int, tensor: Tensor) -> None:
        values = local(tensor.detach())
        wire = values.to(self.ranks.wire).contiguous()
        self.ranks.spread(wire, owners, source)
        if wire is not values:
            values.copy_(wire)


def flatten_parts(weights: Sequence[Tensor], parts: Sequence[Tensor | None]) -> Tensor:
    """Return the parts of weights in one row, zeros for none, and flags which are there."""
    row = [
        torch.zeros_like(local(weight)).flatten() if part is None else local(part).flatten()
        for weight, part in zip(weights, parts, strict=True)
    ]
    there = [float(part is not None) for part in parts]
    return torch.cat([*row, torch.tensor(there, dtype=row[0].dtype, device=row[0].device)])


def split_parts(row: Tensor, weights: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weights with a part in the sum of such rows, and their parts."""
    shapes = [local(weight).shape for weight in weights]
    *sums, present = row.split([*(shape.numel() for shape in shapes), len(weights)])
    for weight, shape, part, has in zip(weights, shapes, sums, present.tolist(), strict=True):
        if has:
            yield weight, part.view(shape)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that may be sharded."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def add_gradient(weight: Tensor, part: Tensor) -> None:
    """Add this rank's part to a parameter's gradient."""
    if weight.grad is None:
        if is_dtensor(weight):
            from torch.distributed.tensor import DTensor

            part = DTensor.from_local(
                part, weight.device_mesh, weight.placements, shape=weight.shape,
                stride=weight.stride(),
            )  # fmt: skip
        weight.grad = part
    else:
        local(weight.grad).add_(part)


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

    def clip(self, weights: Iterable[Tensor], largest: float, kind: float, refuses: bool) -> Tensor:
        """Scale gradients so that their norm over all ranks is at most `largest`.

        Returns the norm before. The `weights` are all parameters of this rank; of a weight that
        several ranks have only the first one counts. The `kind` is 2 for the Euclidean norm,
        infinity for the largest number. As PyTorch's: NaN as norm makes all gradients NaN. With
        `refuses` those of a norm that is not finite stay as they are.
        """
        ranks, kind = self._tied.ranks, float(kind)
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
        if refuses and not norm.isfinite():
            return norm
        factor = largest / (float(norm) + 1e-6)
        if not factor >= 1.0:
            for gradient in there.values():
                gradient.mul_(factor)
        return norm

    @staticmethod
    def check_finite(norm: Tensor) -> Tensor:
        """Return a norm of gradients; raise RunError where it is infinite or NaN."""
        if not norm.isfinite():
            raise RunError(
                f"the norm of the gradients is {float(norm)}, so they are not clipped; "
                "error_if_nonfinite=False clips them all the same"
            )
        return norm


def set_last_backward(module: nn.Module, last: bool) -> None:
    """Let ``fully_shard`` exchange gradients and drop weights after the last backward of a step."""
    for part in module.modules():
        if is_sharded(part):
            part.set_is_last_backward(last)
            part.set_reshard_after_backward(last)
            part.set_requires_gradient_sync(last)
