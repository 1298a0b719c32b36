"""Older versions of weights: their gradients are those of the weights themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError
from debubble.torch.autograd.versions import Versions


def trained(hook: bool) -> tuple[nn.Linear, list[Tensor]]:
    """A module after the backward of an older version, and what a hook of its weight saw."""
    torch.manual_seed(0)
    module, seen = nn.Linear(3, 2), list[Tensor]()
    versions = Versions(module, 2)
    versions.start()
    if hook:
        module.weight.register_hook(lambda slope: seen.append(slope) or slope / 2)  # type: ignore
    x = torch.ones(4, 3)
    torch.func.functional_call(module, dict(versions.of(0)), (x,)).square().sum().backward()
    versions.collect()
    return module, seen


def test_hooks_of_a_weight_run_for_its_older_versions() -> None:
    (plain, _), (hooked, seen) = trained(hook=False), trained(hook=True)
    assert plain.weight.grad is not None
    assert hooked.weight.grad is not None
    assert len(seen) == 1
    assert torch.equal(seen[0], plain.weight.grad)
    assert torch.equal(hooked.weight.grad, plain.weight.grad / 2)
    assert torch.equal(hooked.bias.grad, plain.bias.grad)  # type: ignore[arg-type]


def test_a_hook_for_after_a_gradient_is_added_is_refused() -> None:
    module = nn.Linear(3, 2)
    versions = Versions(module, 2)
    versions.start()
    module.bias.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(ParameterError, match=r"^bias has a hook .*; use register_hook\(\), or a"):
        versions.of(0)
