"""Graphs of the general compiler, which only explains deadlocks, to compare the sweep with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from debubble import Schedule
from debubble.core.actions import KIND_MASK
from debubble.core.kinds import TRANSFER_KINDS
from debubble.engine.event_graph import EventGraph
from debubble.engine.events import compile_events
from debubble.engine.modes import MODE, P2PMode
from debubble.engine.transfers import first_transfer, insert_transfers


def by_rules(schedule: Schedule, mode: P2PMode) -> EventGraph:
    """The graph of any schedule, about its actions as given."""
    policy = MODE[mode].receives
    if policy is None or first_transfer(schedule) is not None:
        return compile_events(schedule, mode)
    lowered = insert_transfers(schedule, policy)
    graph = compile_events(lowered, mode)
    given = np.flatnonzero(~np.isin(lowered.actions & KIND_MASK, TRANSFER_KINDS))
    return replace(graph, schedule=schedule, node=graph.node[given], sent=graph.sent[given])
