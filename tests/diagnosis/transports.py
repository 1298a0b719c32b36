"""Ways in which messages of made runs go from rank to rank, from their definitions.

A *buffered* message leaves when it is made; :mod:`tests.diagnosis.made` has that itself. Here are
those that both ends take part in. A receive is posted when the rank is done with what it ran
before, so that a rank that is busy holds the message up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Key = tuple[str, int, int]
"""Kind, stage and microbatch of an action; both backwards that hand on a gradient are ``"B"``."""

Link = tuple[int, int]
"""Source and target of a message."""

Transfers = Sequence[Sequence[tuple[Key | None, Key | None]]]
"""By rank and action the message that the action needs from another rank, and the one it gives."""

Latency = Callable[[Key], float]
"""Seconds that a message takes when both ends are ready."""


class Rendezvous:
    """A transfer begins when its message is made and its receive is posted, as on gloo.

    Transfers of a link come one after the other. With `blocks`, a rank that sends goes on when the
    transfer is over: always (Megatron without overlap), or only where it posts the receive of its
    next input from the same rank together with the send (PyTorch's 1F1B).
    """

    def __init__(
        self, transfers: Transfers, links: dict[Key, Link], latency: Latency, blocks: str = ""
    ) -> None:
        self.transfers, self.links, self.latency, self.blocks = transfers, links, latency, blocks
        self.made: dict[Key, float] = {}
        self.posted: dict[Key, float] = {}
        self.there: dict[Key, float] = {}
        self.free: dict[Link, float] = {}
        self.standing: dict[int, Key] = {}

    def post(self, key: Key, time: float) -> None:
        """Post a receive, unless it was posted together with a send."""
        self.posted.setdefault(key, time)

    def send(self, rank: int, at: int, key: Key, time: float) -> None:
        """Send what a rank's action number `at` made at `time`."""
        self.made[key] = time
        together = self._next_input(rank, at, key)
        if together is not None:
            self.post(together, time)
        if self.blocks == "all" or (self.blocks == "together" and together is not None):
            self.standing[rank] = key

    def _next_input(self, rank: int, at: int, key: Key) -> Key | None:
        """Return the input of the next action, if it comes from where a message goes to."""
        if at + 1 >= len(self.transfers[rank]):
            return None
        needs = self.transfers[rank][at + 1][0]
        return needs if needs is not None and self.links[needs] == self.links[key][::-1] else None

    def goes_on(self, rank: int, time: float) -> float | None:
        """Return when a rank that is free at `time` can go on; None if that is not known yet."""
        key = self.standing.get(rank)
        if key is None:
            return time
        over = self.arrival(key)
        if over is None:
            return None
        del self.standing[rank]
        return max(time, over)

    def arrival(self, key: Key) -> float | None:
        """Return when a message is there; None if that is not known yet."""
        if key not in self.there:
            if key not in self.made or key not in self.posted:
                return None
            link = self.links[key]
            begin = max(self.made[key], self.posted[key], self.free.get(link, 0.0))
            self.there[key] = self.free[link] = begin + self.latency(key)
        return self.there[key]


class Streams(Rendezvous):
    """Transfers of two ranks queue on one stream of both, in the order of the programs, as on NCCL.

    Receives are launched ahead, so that no computing holds up a message; one that comes earlier in
    the queue does. A send and a receive that a rank posts together run at the same time.
    """

    def __init__(self, transfers: Transfers, links: dict[Key, Link], latency: Latency) -> None:
        super().__init__(transfers, links, latency)
        self.before: dict[Key, list[Key]] = {}
        """What runs on the stream before a message."""
        for rank, actions in enumerate(transfers):
            ends = [end for needs, gives in actions for end in (needs, gives) if end is not None]
            for peer in {max(links[end]) for end in ends} - {rank}:
                mine = [end for end in ends if max(links[end]) == peer]
                self._queue(mine, rank)

    def _queue(self, mine: list[Key], rank: int) -> None:
        """Queue the messages between a rank and a later one."""
        groups: list[list[Key]] = []
        for key in mine:
            alone = groups and len(groups[-1]) == 1
            if alone and self.links[groups[-1][0]][0] == rank and self._joined(key, rank, groups):
                groups[-1].append(key)
            else:
                groups.append([key])
        for before, group in zip([[], *groups], groups, strict=False):
            self.before |= dict.fromkeys(group, before)

    def _joined(self, key: Key, rank: int, groups: list[list[Key]]) -> bool:
        at = next(i for i, row in enumerate(self.transfers[rank]) if row[1] == groups[-1][0])
        return self._next_input(rank, at, groups[-1][0]) == key

    def post(self, key: Key, time: float) -> None:
        """Post nothing: streams have it all."""

    def arrival(self, key: Key) -> float | None:
        """Return when a message is there; None if that is not known yet."""
        if key not in self.there:
            before = [self.arrival(one) for one in self.before[key]]
            if key not in self.made or None in before:
                return None
            self.posted[key] = max((time for time in before if time is not None), default=0.0)
            self.there[key] = max(self.made[key], self.posted[key]) + self.latency(key)
        return self.there[key]


def transport_of(
    name: str, transfers: Transfers, links: dict[Key, Link], latency: Latency
) -> Rendezvous | None:
    """Return a transport by its name in :data:`TRANSPORTS`; None for buffered messages."""
    if name == "buffered":
        return None
    if name == "streams":
        return Streams(transfers, links, latency)
    return Rendezvous(transfers, links, latency, TRANSPORTS[name])


TRANSPORTS = {
    "buffered": "", "rendezvous": "", "streams": "", "together": "together", "blocking": "all",
}  # fmt: skip
"""Names of transports, and the sends that a rank waits for."""
