"""Several lowerings of a schedule, one after the other, in the one order that works."""

from __future__ import annotations

from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.memory import Limit
from debubble.lowering.offload import add_offload
from debubble.lowering.recompute import RecomputeAt, Stages, add_recompute
from debubble.lowering.sharding import ShardingMode, add_sharding
from debubble.lowering.transfers import ReceivePolicy, add_transfers


def lower(
    schedule: Schedule,
    *,
    recompute: Stages | None = None,
    recompute_at: RecomputeAt | None = None,
    offload: Stages | None = None,
    transfers: ReceivePolicy | None = None,
    sharding: ShardingMode | None = None,
    costs: Costs | None = None,
    memory: Limit | None = None,
    p2p_mode: P2PMode = "overlapped",
) -> Schedule:
    """Add recomputes and copies, then sends and receives, then what data-parallel replicas do.

    Parameters
    ----------
    schedule
        What to lower.
    recompute, recompute_at
        Which stages recompute their forwards, and where; see
        :func:`debubble.lowering.recompute.add_recompute`, which also takes `costs`, `memory` and
        `p2p_mode`.
    offload
        Which stages' activations wait on the host, see
        :func:`debubble.lowering.offload.add_offload`.
    transfers
        Where receives stand, see :func:`debubble.lowering.transfers.add_transfers`; None leaves
        transfers to the simulation.
    sharding
        See :func:`debubble.lowering.sharding.add_sharding`; None for no such actions.

    Returns
    -------
    Schedule
        The same one where nothing is asked for.
    """
    schedule = add_recompute(
        schedule, recompute, at=recompute_at, costs=costs, memory=memory, p2p_mode=p2p_mode
    )
    schedule = add_offload(schedule, offload, costs=costs, memory=memory, p2p_mode=p2p_mode)
    if transfers is not None:
        schedule = add_transfers(schedule, policy=transfers)
    if sharding is not None:
        schedule = add_sharding(schedule, mode=sharding)
    return schedule
