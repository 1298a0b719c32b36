"""What ``fully_shard`` was applied to, told without loading it: that takes half as long as PyTorch.

Nothing is sharded in a process that has not loaded what shards.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    """Whether ``fully_shard`` was applied to a module."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and isinstance(module, loaded.FSDPModule)


def is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a ``DTensor``, of which each rank has a part."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)
