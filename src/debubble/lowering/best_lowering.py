"""Choice of the best of several ways to lower a schedule, by a simulation in the given mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from debubble.core.costs import Costs
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.memory import Limit, excess, memory_limits
from debubble.engine.timeline import evaluate_graph


class Setting(NamedTuple):
    """Costs, memory limit and p2p mode that a lowered schedule is for."""

    costs: Costs | None = None
    memory: Limit | None = None
    p2p_mode: P2PMode = "overlapped"

    def best(self, ways: Sequence[Schedule]) -> Schedule:
        """Return the way nearest to the memory limit, of those the fastest, then of least memory.

        The first of equals. Ways that lock up in the mode count only where all do: then it is the
        first, and its simulation or check says why.
        """
        first, *others = ways
        if not others:
            return first
        costs, limits = self.costs or Costs(), memory_limits(self.memory, first.ranks)
        found = []
        for place, way in enumerate(ways):
            try:
                graph = compile_graph(way, self.p2p_mode, costs.host_link_shared_by, explain=False)
            except ScheduleError:
                continue
            timeline = evaluate_graph(graph, costs)
            peak = timeline.peak_activation
            key = (excess(peak, limits), timeline.makespan, float(peak.max()), place)
            found.append((key, way))
        return min(found, key=lambda pair: pair[0])[1] if found else first
