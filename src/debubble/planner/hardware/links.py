"""Times of collectives by group, message and topology.

A collective moves bytes over the slowest link of its way: `wire` seconds at full rate. Small
messages do not reach that rate. Measured curves of 8 H200 and of 8 B200 (*Machine Learning
Engineering*, network benchmarks) follow ``wire + start**0.8 * wire**0.2``: what a message takes
beyond its bytes grows slowly with them. Between nodes, a hierarchical collective works on both
kinds of link at once; the shorter of the two is hidden in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from debubble.planner.candidate import Degrees
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import Gpu

START_INSIDE, START_BETWEEN = 80e-6, 500e-6
"""Seconds that scale the start of a collective in one node of 8, and over nodes; fitted to the
curves above: 3 % off on H200, 10 % on B200, 15 % over four nodes from 16 MiB on."""
GROWTH = 0.2
HIDDEN = 0.4
"""Share of the shorter of a hierarchical collective's two phases that hides in the longer one: four
nodes of B200 take 22 ms for 4 GiB, the network alone 16.1, both in turn 26.3."""
NETWORK = 0.95
"""Share of a network card's rate that large collectives reach: 24 of 25, 48 of 50, 380 of 400."""
LATENCY_INSIDE, LATENCY_BETWEEN = 10e-6, 20e-6
"""Seconds until a message between two ranks arrives, without those of its bytes."""

Dimension = Literal["tp", "cp", "ep", "dp", "pp", "expert_dp", "shards"]


@dataclass(frozen=True)
class RankGroup:
    """The size of a group of communicating ranks, and the number of them that share a node."""

    size: int
    inside: int

    @property
    def nodes(self) -> int:
        """Number of nodes that the group spans."""
        return -(-self.size // self.inside)


@lru_cache(maxsize=4096)
def group_of(cluster: Cluster, degrees: Degrees, dimension: Dimension) -> RankGroup:
    """Return the group of one dimension, ranks numbered tp first, then cp, dp and pp.

    ``ep`` counts over the ranks of tp, cp and dp; ``expert_dp`` are the copies of one expert, and
    ``shards`` the ranks of cp and dp together, over which optimizer states are spread.
    """
    size, stride = {
        "tp": (degrees.tp, 1),
        "cp": (degrees.cp, degrees.tp),
        "dp": (degrees.dp, degrees.tp * degrees.cp),
        "shards": (degrees.cp * degrees.dp, degrees.tp),
        "ep": (degrees.ep, 1),
        "expert_dp": (degrees.expert_dp, degrees.ep),
        "pp": (degrees.pp, degrees.tp * degrees.cp * degrees.dp),
    }[dimension]
    return RankGroup(size, _inside(size, stride, cluster.gpu.node))


def _inside(size: int, stride: int, node: int) -> int:
    """Return ranks of a group in one node: the largest divisor of its size that fits."""
    fit = max(node // stride, 1)
    return next(count for count in range(min(fit, size), 0, -1) if size % count == 0)


def all_reduce(gpu: Gpu, group: RankGroup, size: float) -> float:
    """Return seconds to sum `size` bytes that every rank has."""
    return _collective(gpu, group, 2 * size, gpu.reduce)


def all_gather(gpu: Gpu, group: RankGroup, size: float) -> float:
    """Return seconds until every rank has all `size` bytes, of which each had its share."""
    return _collective(gpu, group, size, gpu.gather)


reduce_scatter = all_gather
"""Seconds to sum `size` bytes that every rank has, each keeping its share: as all-gather."""


def dispatch(
    gpu: Gpu, group: RankGroup, tokens: float, width: float, copies: int, *, apart: bool = False
) -> float:
    """Return seconds in which a rank's tokens reach their experts, each rank and node once.

    A token of `width` bytes with several experts on one rank is sent there once, over the network
    once per node, as DeepEP and HybridEP do. Of `copies` experts in balance,
    ``n (1 - (1 - 1/n)**copies)`` of n places are met. Measured for HybridEP (arXiv 2603.07685): 391
    and 675 us on 8 and 64 GB200, 661 us and 4.6 ms on 8 and 64 H100; here 431, 689, 855 us and 5.7
    ms. If copies go `apart`, as in an all-to-all, each counts.
    """
    if group.size <= 1 or not tokens:
        return 0.0
    ranks = copies if apart else _met(group.size, copies)
    nodes = copies if apart else _met(group.nodes, copies)
    inside = tokens * width * ranks * (group.inside - 1) / group.size
    outside = tokens * width * nodes * (group.nodes - 1) / group.nodes
    wire = max(inside / _inner(gpu, group.inside, gpu.exchange), outside / (gpu.nic * NETWORK))
    return wire + (LATENCY_INSIDE if group.nodes == 1 else LATENCY_BETWEEN)


def _met(places: int, copies: int) -> float:
    """Return the number of different places among a token's copies, placed at random."""
    return float(places * (1 - (1 - 1 / places) ** copies))


def send(gpu: Gpu, size: float, *, inside: bool) -> float:
    """Return seconds until a message of `size` bytes has arrived at another rank."""
    rate = (gpu.peer or gpu.link) * gpu.gather if inside else gpu.nic * NETWORK
    return (LATENCY_INSIDE if inside else LATENCY_BETWEEN) + size / rate


def _collective(gpu: Gpu, group: RankGroup, size: float, share: float) -> float:
    """Return seconds of a collective of `size` bytes, less one share, through every rank."""
    if group.size <= 1 or not size:
        return 0.0
    inner, nodes = group.inside, group.nodes
    inside = (inner - 1) / inner * size / _inner(gpu, inner, share)
    if nodes == 1:
        return _started(inside, group)
    between = (nodes - 1) / nodes * size / inner / (gpu.nic * NETWORK)
    longer, shorter = max(inside, between), min(inside, between)
    return _started(longer + (1 - HIDDEN) * shorter, group)


SMALLEST_SWITCH_REDUCE, RING = 5, 0.82
"""Ranks from which switches sum (NVLS), and the share of the links that a ring reaches below."""


def _inner(gpu: Gpu, ranks: int, share: float) -> float:
    """Return bytes per second that a collective reaches among so many ranks of one node."""
    if gpu.peer:
        return max(ranks - 1, 1) * gpu.peer * min(share, RING)
    if ranks < SMALLEST_SWITCH_REDUCE:
        share = min(share, RING)
    return gpu.link * share


def _started(wire: float, group: RankGroup) -> float:
    """Return seconds with the start of a collective on top of the bytes' own time."""
    if not wire:
        return 0.0
    start = START_BETWEEN if group.nodes > 1 else START_INSIDE * group.size / 8
    return float(wire + start ** (1 - GROWTH) * wire**GROWTH)
