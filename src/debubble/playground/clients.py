"""What one client may ask for, so that a public server has room for the others."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from debubble.core.errors import DebubbleError

MOST_CLIENTS = 1 << 16
"""Clients that are remembered; of those without a request under way, the longest quiet go first."""

MINUTE = 60.0


class TooManyError(DebubbleError):
    """A client asks for more than its share."""


@dataclass
class _Client:
    """Requests that a client has left, when that was counted, and those under way."""

    left: float
    counted: float
    under_way: int = 0


class Clients:
    """Counts the requests of every client: those per minute, and those under way; 0 for no limit.

    After a quiet minute as many as in a minute may come at once.
    """

    def __init__(
        self, per_minute: int = 0, at_once: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_minute = per_minute
        self.at_once = at_once
        self.clock = clock
        self._known: OrderedDict[str, _Client] = OrderedDict()

    @contextmanager
    def serving(self, address: str) -> Iterator[None]:
        """Count a request of an address while it is under way; refuse too many of one client."""
        name = client_of(address)
        client = self._counted(name)
        if self.at_once and client.under_way >= self.at_once:
            raise TooManyError(
                f"{self.at_once} requests of yours are under way; wait for one of them"
            )
        if self.per_minute:
            if client.left < 1:
                seconds = math.ceil((1 - client.left) * MINUTE / self.per_minute)
                raise TooManyError(
                    f"more than {self.per_minute} requests in a minute; try again in {seconds} s"
                )
            client.left -= 1
        client.under_way += 1
        try:
            yield
        finally:
            client.under_way -= 1

    def _counted(self, name: str) -> _Client:
        """A client with what it has left by now."""
        now = self.clock()
        client = self._known.setdefault(name, _Client(self.per_minute, now))
        self._known.move_to_end(name)
        gained = (now - client.counted) * self.per_minute / MINUTE
        client.left = min(client.left + gained, self.per_minute)
        client.counted = now
        if len(self._known) > MOST_CLIENTS:
            quiet = next((key for key, each in self._known.items() if not each.under_way), name)
            if quiet != name:
                del self._known[quiet]
        return client


def client_of(address: str) -> str:
    """Whom an address stands for: a network of 2⁶⁴ addresses in IPv6, as every home has one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"
