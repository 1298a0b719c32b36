"""Guard in front of the application: hosts, origins, sizes, shares of clients, and headers."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from debubble.playground import limits
from debubble.playground.limits import RefusedError

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # Perfetto opens in a tab that the page sends the trace to.
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
"""Headers of every answer."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


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


class Guard:
    """Application that refuses foreign hosts, foreign pages, large bodies and greedy clients.

    A page of another site can make a browser send requests here, also under a name of its own that
    leads to this machine. So the host has to be one of `hosts`, or an address in numbers, and a
    request with an origin has to come from here. Shares of clients hold for work; pages and scripts
    are free.
    """

    def __init__(self, app: App, hosts: frozenset[str], clients: Clients) -> None:
        self.app = app
        self.hosts = hosts
        self.clients = clients
        self.held = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        most = limits.MAX_TRACE if scope["path"] == limits.TRACE else limits.MAX_BODY
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            taken += size
            self.held += size
            if taken > most:
                raise too_large(most)
            if self.held > limits.MAX_HELD:
                raise RefusedError("too many large requests at once; try again", status=503)
            return message

        try:
            self._check(Headers(scope=scope), most)
            if scope["path"].startswith(limits.WORK):
                address, _ = scope.get("client") or ("", 0)
                with self.clients.serving(address):
                    await self.app(scope, bounded, guarded)
            else:
                await self.app(scope, bounded, guarded)
        except RefusedError as error:
            await refusal(error)(scope, receive, guarded)
        finally:
            self.held -= taken

    def _check(self, headers: Headers, most: int) -> None:
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self.hosts and not _is_address(name):
            raise RefusedError("this server answers under its own name only", status=421)
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != host:
            raise RefusedError("requests of other pages are not answered", status=403)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise too_large(most)


def too_large(most: int) -> RefusedError:
    """Return the refusal of a body with too many bytes."""
    return RefusedError(f"the request has more than {most:,} bytes", status=413)


def refusal(error: RefusedError) -> JSONResponse:
    """Return the answer to a refused request."""
    # The rest of a request that was not read to its end is not waited for.
    unread = error.status in (408, 413, 415, 429)
    return JSONResponse(error.to_dict(), error.status, {"connection": "close"} if unread else None)


def _authority(origin: str) -> str | None:
    """Return host and port of an origin, None when it is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
