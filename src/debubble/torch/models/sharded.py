"""What ``fully_shard`` was applied to, told without loading it: that takes half as long as PyTorch.

Nothing is sharded in a process that has not loaded what shards.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    """Whether ``fully_shard`` was applied to a module."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and isinstance(module, loaded.FSDPModule)


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a ``DTensor``, of which each rank has a part."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def replica_groups(module: nn.Module) -> list[dist.ProcessGroup]:
    """The groups over which gradients of a stage are averaged, one after the other; [] for none."""
    if isinstance(module, DistributedDataParallel):
        return [module.process_group]
    spread = next((weight for weight in module.parameters() if is_dtensor(weight)), None)
    return [] if spread is None else list(spread.device_mesh.get_all_groups())
