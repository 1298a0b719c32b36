"""Decoder models of Hugging Face's transformers, cut into stages.

A stage is the model's own code: a shell of the model with placeholders for the modules of other
stages. Masks and rotary embeddings are computed on every stage, from the same
keyword arguments. Layers, weights and names stay those of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.layers import even_cut
from debubble.torch.data.batch import add_loss
from debubble.torch.models.compare_cut import refuse_other_results
from debubble.torch.models.family import (
    COMPARED,
    NAMES,
    ON_EVERY_STAGE,
    Absent,
    AddsNothing,
    Family,
    find_family,
    kind_of,
    shell_of,
    shell_with,
)


def find_layers(stage: nn.Module) -> list[nn.Module]:
    """Return the layers of a stage in order, none where it has no list of them.

    A list is a ``Sequential``, or an attribute called `layers`, `h` or `blocks` that is a
    ``ModuleList``, ``ModuleDict`` or ``Sequential``; the outermost one counts. Placeholders for
    layers of other stages are left out.
    """
    return [layer for layer in _listed(stage) if not isinstance(layer, Absent)]


def _listed(stage: nn.Module) -> list[nn.Module]:
    if isinstance(stage, nn.Sequential):
        return list(stage)
    for name, part in stage.named_modules():
        if name.rpartition(".")[2] in NAMES:
            if isinstance(part, nn.ModuleDict):
                return list(part.values())
            if isinstance(part, nn.ModuleList | nn.Sequential):
                return list(part)
    return []


def split(
    model: Any,
    stages: int | Sequence[int] | Sequence[Sequence[str]],
    *,
    check: bool | None = None,
) -> list[nn.Module]:
    """Cut a Hugging Face decoder model into stages.

    Parameters
    ----------
    model
        A model for causal language modeling, with adapters of PEFT or without. Its modules are
        used, not copied, so tied weights are one tensor in two stages.
    stages
        Their number; or the number of layers of each, or the names of the modules of each:
        ``[["model.embed_tokens", "model.layers.0"], ["model.layers.1", "model.norm",
        "lm_head"]]``. Embeddings are on the first and the head is on the last stage.
    check
        Whether to compare the stages with the model, forward and backward, on a small input: bit by
        bit, or for the router's loss by 1e-4. None compares types that the tests do not have. It
        takes memory for two gradients of the model.

    Returns
    -------
    list of DecoderStage
        In forward order. The first takes token numbers, the last returns logits; all take the
        keyword arguments `attention_mask` and `position_ids`. Between stages goes one tensor, and
        where the model's config asks for the router's loss (``output_router_logits``) a second
        one, from which the last stage computes it for :func:`debubble.torch.add_loss`.

    Raises
    ------
    ParameterError
        When the model computes more than its parts one after the other, or the stages are no cut
        of it.
    """
    model = _without_adapter(model)
    family = find_family(model)
    count = len(getattr(family.body_of(model), family.layers))
    units = [*family.before, *range(count), *family.after, family.head]
    cuts = _cuts(family, units, stages)
    found: list[nn.Module] = [DecoderStage(model, family, units[start:end]) for start, end in cuts]
    if check or (check is None and kind_of(model) not in COMPARED):
        refuse_other_results(model, found, DecoderStage(model, family, []), kind_of(model))
    return found


def _without_adapter(model: Any) -> Any:
    """Return the model inside of PEFT's, whose layers have the adapters."""
    inner = getattr(model, "get_base_model", None)
    if inner is None:
        return model
    if any(each.is_prompt_learning for each in model.peft_config.values()):
        raise ParameterError(
            "the adapter adds tokens to the input, which no stage does; use one that changes "
            "layers, as LoRA"
        )
    return inner()


class DecoderStage(nn.Module):
    """Consecutive parts of a decoder model: `units` are names of parts and numbers of layers."""

    def __init__(self, model: Any, family: Family, units: Sequence[str | int]) -> None:
        super().__init__()
        self.config = model.config
        self.training = model.training
        self._prefix = family.body[0]
        body = family.body_of(model)
        layers = getattr(body, family.layers)
        shell = shell_of(body)
        for name in (*family.before, *family.after):
            if name not in units:
                setattr(shell, name, AddsNothing() if name in family.added else Absent())
        here = [
            layer if index in units else Absent(family.tuples) for index, layer in enumerate(layers)
        ]
        setattr(shell, family.layers, nn.ModuleList(here))
        for name, part in body.named_children():
            if ON_EVERY_STAGE in name:
                # It has no weights, but buffers that move with the stage.
                setattr(shell, name, copy.deepcopy(part))
        inner = shell_with(getattr(model, self._prefix), family.body[1:], shell)
        setattr(self, self._prefix, inner)
        self._head = family.head
        if family.head in units:
            setattr(self, family.head, getattr(model, family.head))
        self.is_first, self.is_last = family.before[0] in units, family.head in units
        self.whole: Any = None
        """The model with this stage's modules, whose code computes the logits; None where they are
        the output layer's."""
        if self.is_last and kind_of(model) not in COMPARED:
            whole = shell_of(model)
            vars(whole)["_modules"] = self._modules
            # Not as a module: its weights are this stage's.
            object.__setattr__(self, "whole", whole)
        self._router = router = _router(model)
        self._routers = [
            part
            for layer in here
            for part in layer.modules()
            if router and isinstance(part, router)
        ]
        self._count = sum(isinstance(part, router) for part in body.modules()) if router else 0

    def forward(
        self,
        x: Tensor,
        balance: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Return hidden states, or on the last stage logits, of token numbers or hidden states `x`.

        Where the router's loss is wanted, `balance` has counts and probabilities of experts on the
        stages before; it is returned with those of this stage as the second of two tensors.
        """
        body = getattr(self, self._prefix)
        given = {
            "input_ids" if self.is_first else "inputs_embeds": x, "attention_mask": attention_mask,
            "position_ids": position_ids, "use_cache": False,
            **({"output_router_logits": False} if self._router else {}),
        }  # fmt: skip
        with _recorded(self._routers) as logits:
            if self.whole is not None:
                output = self.whole.forward(**given).logits
            else:
                hidden = body(**given).last_hidden_state
                output = getattr(self, self._head)(hidden) if self.is_last else hidden
        if self._router is None:
            return output
        balance = _add(balance, logits, self.config, attention_mask, x)
        if not self.is_last:
            return output, balance
        rows = x.shape[0] * x.shape[1] if attention_mask is None else attention_mask.sum()
        # The loss of Switch Transformers (arXiv 2101.03961, eq. 4) over all layers.
        chosen, chance = balance / (rows * self._count)
        imbalance = torch.sum(chosen.detach() * chance) * balance.shape[1]
        add_loss(self.config.router_aux_loss_coef * imbalance)
        return output


def _router(model: Any) -> type[nn.Module] | None:
    """Return the class of routers whose balance is part of the loss, None for none.

    Some types have routers, or their config's switch, and no such loss.
    """
    wanted = getattr(model.config, "output_router_logits", False)
    if not wanted or not hasattr(model, "router_aux_loss_coef"):
        return None
    recorded = getattr(model.base_model, "_can_record_outputs", None) or {}
    found: type[nn.Module] | None = getattr(recorded.get("router_logits"), "target_class", None)
    return found


@contextmanager
def _recorded(routers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the logits of routers in a forward."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
        found.append(output[0])

    hooks = [router.register_forward_hook(note) for router in routers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _add(
    balance: Tensor | None, logits: Sequence[Tensor], config: Any, mask: Tensor | None, x: Tensor
) -> Tensor:
    """Add up how often routers chose each expert, and its probabilities; shape ``(2, n)``.

    The sums go over all layers so far; padding does not count.
    """
    if balance is None:
        experts = getattr(config, "num_experts", None) or config.num_local_experts
        balance = torch.zeros(2, experts, device=x.device)
    for layer in logits:
        chances = torch.softmax(layer, dim=-1)
        chosen = torch.topk(chances, config.num_experts_per_tok, dim=-1).indices
        weight = torch.ones(len(chances), device=chances.device)
        if mask is not None:
            weight = mask.reshape(-1).to(weight)
        count = torch.zeros_like(balance[0]).index_add(
            0, chosen.reshape(-1), weight.repeat_interleave(chosen.shape[-1])
        )
        balance = balance + torch.stack([count, (chances.float() * weight[:, None]).sum(0)])
    return balance


def _cuts(family: Family, units: Sequence[str | int], stages: Any) -> list[tuple[int, int]]:
    """Return begin and end of every stage's units."""
    count = sum(isinstance(unit, int) for unit in units)
    before, after = len(family.before), len(family.after) + 1
    if isinstance(stages, int) and not isinstance(stages, bool):
        if not 1 <= stages <= count:
            raise ParameterError(
                f"stages is {stages}; the model has {count} layers, give a number from 1 to {count}"
            )
        stages = even_cut(count, stages)
    listed = isinstance(stages, Sequence) and not isinstance(stages, str) and len(stages) > 0
    if listed and all(isinstance(item, int) and item >= 0 for item in stages):
        if sum(stages) != count:
            raise ParameterError(
                f"stages have {'+'.join(map(str, stages))} = {sum(stages)} layers; the model has "
                f"{count}"
            )
        ends = [0, *accumulate(stages)]
        ends = [end + before for end in ends]
        return list(pairwise([0, *ends[1:-1], ends[-1] + after]))
    if listed and all(isinstance(item, Sequence) and not isinstance(item, str) for item in stages):
        return _by_name(family, units, stages)
    raise ParameterError(
        f"stages is {stages!r}; give their number, the layers of each, or the names of the modules "
        "of each"
    )


def _by_name(
    family: Family, units: Sequence[str | int], stages: Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Return begin and end of every stage's units by the names of its modules."""
    prefix = ".".join(family.body)
    names: Mapping[str | int, str] = {
        unit: family.head if unit == family.head else f"{prefix}.{family.layers}.{unit}"
        if isinstance(unit, int) else f"{prefix}.{unit}"
        for unit in units
    }  # fmt: skip
    # Every stage has its own rotary embedding: its name is no part of a cut.
    left = {f"{prefix}.rotary_emb"}
    given = [[name for name in stage if name not in left] for stage in stages]
    known = {name: index for index, name in enumerate(names.values())}
    for name in (name for stage in given for name in stage):
        if name not in known:
            raise ParameterError(f"the model has no part '{name}'; {did_you_mean(name, known)}")
    ends, position = [], 0
    order = list(known)
    for number, stage in enumerate(given):
        start = position
        while position < len(order) and order[position] in stage:
            position += 1
        if position - start < len(set(stage)):
            raise ParameterError(
                f"stage {number} has {', '.join(stage)}; stages follow one another without a gap, "
                f"and the next part is {order[min(position, len(order) - 1)]}"
            )
        ends.append((start, position))
    if position < len(known):
        raise ParameterError(f"no stage has {order[position]}; name every part once")
    return ends
