"""Find the pipelines of a job: which global rank is which rank of the schedule, in which copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from debubble.core.errors import ParameterError
from debubble.core.units import counted
from debubble.diagnosis.hang.dumps import UNKNOWN, Dump
from debubble.diagnosis.hang.order_messages import OrderMessages


@dataclass(frozen=True)
class JobPlaces:
    """Places of the ranks of a job, of which some may have no dump."""

    ranks: tuple[tuple[int, ...], ...]
    """Global ranks of every copy of the pipeline, by rank of the schedule."""
    where: dict[int, tuple[int, int]]
    """(copy, rank) of every global rank."""


def place_ranks(dumps: Sequence[Dump], order: OrderMessages) -> JobPlaces:
    """Return the places of all ranks that a job of these dumps has.

    A process group of as many ranks as the schedule is a pipeline, in its own order. In a larger
    one the ranks of a pipeline stand at one distance, at which all messages are between ranks that
    exchange some in the schedule; the largest such distance counts, as pipelines are usually
    outermost. Raises ParameterError where there is none, or where ranks of two pipelines exchange
    messages, but for those of one place in both.
    """
    ranks = order.lowered.ranks
    groups = {dump.pipeline for dump in dumps if len(dump.sends)}
    if groups and all(len(group) == ranks for group in groups):
        return _places(sorted(groups))
    groups |= {group for dump in dumps for group in dump.groups.values()}
    world = sorted(max(groups, key=len, default=()) or (dump.rank for dump in dumps))
    if len(world) % ranks:
        raise ParameterError(
            f"the dumps are of a job of {counted(len(world), 'rank')}, and the schedule has "
            f"{ranks}; give the one that ran, with -p"
        )
    copies = len(world) // ranks
    talks = {(dump.rank, peer) for dump in dumps for peer in set(dump.peer.tolist())}
    talks = {(here, there) for here, there in talks if there != UNKNOWN}
    best, most = _at_distance(world, ranks, copies), -1
    for distance in range(copies, 0, -1):
        if copies % distance:
            continue
        places = _at_distance(world, ranks, distance)
        fits = sum(_fits(places, pair, order) for pair in talks)
        if fits > most:
            best, most = places, fits
    for pair in sorted(talks):
        here, there = (best.where.get(rank) for rank in pair)
        if here is None or there is None or here[0] == there[0] or here[1] == there[1]:
            continue
        count = ranks_that_talk(dumps)
        raise ParameterError(
            f"ranks {pair[0]} and {pair[1]} exchange messages: a pipeline has "
            f"{counted(count, 'rank')}, and the schedule has {ranks}; give the one that ran, with "
            f"-p {count}"
        )
    return best


def ranks_that_talk(dumps: Sequence[Dump]) -> int:
    """Return how many ranks exchange messages with each other, at most: those of a pipeline."""
    group = {dump.rank: dump.rank for dump in dumps}

    def head(rank: int) -> int:
        while group.setdefault(rank, rank) != rank:
            rank = group[rank]
        return rank

    for dump in dumps:
        for peer in set(dump.peer.tolist()) - {UNKNOWN}:
            group[head(peer)] = head(dump.rank)
    sizes = Counter(map(head, list(group)))
    return max(sizes.values(), default=1)


def _fits(places: JobPlaces, talk: tuple[int, int], order: OrderMessages) -> bool:
    """Return whether two global ranks exchange messages in the schedule."""
    if not all(rank in places.where for rank in talk):
        return False
    (copy, here), (other, there) = places.where[talk[0]], places.where[talk[1]]
    return copy == other and ((here, there) in order.pairs or (there, here) in order.pairs)


def _at_distance(world: Sequence[int], ranks: int, distance: int) -> JobPlaces:
    """Return pipelines whose ranks stand `distance` apart."""
    blocks = range(0, len(world), distance * ranks)
    return _places(
        [tuple(world[first + shift : first + distance * ranks : distance])
         for first in blocks for shift in range(distance)]
    )  # fmt: skip


def _places(groups: Sequence[tuple[int, ...]]) -> JobPlaces:
    where = {
        rank: (copy, place) for copy, group in enumerate(groups) for place, rank in enumerate(group)
    }
    return JobPlaces(tuple(groups), where)
