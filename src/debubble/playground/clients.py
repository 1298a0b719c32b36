"""Shares of clients, so that a public server has room for everyone."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from debubble.playground.limits import RefusedError

MOST_CLIENTS = 1 << 16
"""Clients that are remembered; of those without a request under way, the longest quiet go first."""

MINUTE = 60.0


@dataclass
class _Client:
    """State of a client."""

    spent_until: float = 0.0
    """Time at which its requests so far are used up, evenly spaced; at most a minute ahead."""
    under_way: int = 0


class Clients:
    """Limits of requests for each client: those per minute, and those under way; 0 for none.

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
        client = self._known.setdefault(name, _Client())
        self._known.move_to_end(name)
        if len(self._known) > MOST_CLIENTS:
            quiet = next((key for key, each in self._known.items() if not each.under_way), name)
            if quiet != name:
                del self._known[quiet]
        if self.at_once and client.under_way >= self.at_once:
            raise RefusedError(
                f"{self.at_once} requests of yours are under way; wait for one of them", status=429
            )
        if self.per_minute:
            now = self.clock()
            spent = max(client.spent_until, now) + MINUTE / self.per_minute
            early = spent - now - MINUTE
            if early > 1e-6:
                raise RefusedError(
                    f"more than {self.per_minute} requests in a minute; try again in "
                    f"{math.ceil(early)} s",
                    status=429,
                )
            client.spent_until = spent
        client.under_way += 1
        try:
            yield
        finally:
            client.under_way -= 1


def client_of(address: str) -> str:
    """Return the client of an address: in IPv6 a network of 2⁶⁴ addresses, as homes have."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"
