"""Comparison of a model with its stages, on a small input: all numbers are equal, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError
from debubble.torch.data.batch import added_losses
from debubble.torch.data.tree import arguments
from debubble.torch.models.family import BY_HAND
from debubble.torch.models.modules import evaluating, restored

ROWS, TOKENS, PADDING = 2, 8, 3
"""Sizes of the input; the padded one has so many tokens less in its first row."""

NEAR = 1e-4
"""Relative distance of losses of routers, whose sums over layers the stages take in turn."""


def refuse_other_results(
    model: Any, stages: Sequence[nn.Module], idle: nn.Module, kind: str
) -> None:
    """Refuse stages that do not compute what the model does, forward and backward.

    The `idle` stage has no part of the model, and returns its input, also in training. Gradients,
    buffers and random numbers are as before afterwards.
    """
    weights = dict(model.named_parameters())
    meta = next((name for name, weight in weights.items() if weight.is_meta), None)
    if meta is not None:
        raise ParameterError(
            f"stages of a model of type '{kind}' are compared with the model, and its {meta} is on "
            "the device 'meta', without numbers; give a model with some, or check=False"
        )
    device = next(iter(weights.values())).device
    source = torch.Generator().manual_seed(0)
    count = model.get_input_embeddings().num_embeddings
    x = torch.randint(count, (ROWS, TOKENS), generator=source).to(device)
    mask = torch.ones_like(x)
    mask[0, TOKENS - PADDING :] = 0
    with ExitStack() as stack:
        stack.enter_context(evaluating([model, *stages]))
        stack.enter_context(restored([model], device))
        for given in (None, mask):
            near = NEAR if getattr(model.config, "output_router_logits", False) else 0.0
            whole = partial(_whole, model, x, given)
            wanted = _results(model, whole)
            try:
                found = _results(model, partial(_composed, stages, x, given))
            except Exception as error:
                raise ParameterError(
                    f"a model of type '{kind}' cannot be cut: its stages could not be run by "
                    f"themselves ({type(error).__name__}: {error}); {BY_HAND}"
                ) from error
            for name, value in wanted.items():
                other = found.get(name)
                if other is not None and _same(value, other, near):
                    continue
                # Some kernels add up in another sequence every time.
                again = _results(model, whole)[name]
                noise = 4 * float((again - value).abs().max())
                apart = torch.inf if other is None else float((other - value).abs().max())
                if apart > noise:
                    raise ParameterError(
                        f"a model of type '{kind}' cannot be cut: {name} of its stages "
                        f"{'are' if name == LOGITS else 'is'} {apart:.1e} from that of the whole "
                        "model, which computes more than its parts in turn"
                    )
        if len(stages) > 1:
            _refuse_dropout_on_every_stage(stages[0](x), idle, kind)


def _refuse_dropout_on_every_stage(output: Any, idle: nn.Module, kind: str) -> None:
    """Refuse a model whose body itself changes hidden states in training, so every stage does."""
    given = arguments(output)
    with evaluating([idle]), torch.no_grad():
        found = arguments(idle.train()(*given))
    if not torch.equal(found[0], given[0]):
        raise ParameterError(
            f"a model of type '{kind}' cannot be cut: in training it changes hidden states outside "
            f"of its parts, as by dropout, and each stage would do so; set that dropout to 0, or "
            f"{BY_HAND}"
        )


LOGITS = "the logits"


def _results(model: nn.Module, run: Callable[[], tuple[Tensor, Any]]) -> dict[str, Tensor]:
    """Return logits and gradients of a computation."""
    model.zero_grad()
    logits, added = run()
    (logits.float().square().mean() + added).backward()
    gradients = {
        f"the gradient of {name}": weight.grad
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }
    return {LOGITS: logits.detach(), **gradients}


def _whole(model: Any, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Any]:
    found = model(x, attention_mask=mask, use_cache=False)
    balance = getattr(found, "aux_loss", None)
    scale = getattr(model.config, "router_aux_loss_coef", 1)
    return found.logits, 0 if balance is None else scale * balance


def _composed(stages: Sequence[nn.Module], x: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
    with added_losses() as added:
        for stage in stages:
            x = stage(*arguments(x), attention_mask=mask)
    return x, sum(added)


def _same(one: Tensor, other: Tensor, near: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(
        near and (one - other).abs().max() <= near * one.abs().max()
    )
