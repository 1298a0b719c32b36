"""Limits of requests, and the guard that enforces them before the application runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from debubble.core.errors import DebubbleError
from debubble.playground.clients import Clients, TooManyError

MAX_BODY = 12 << 20
"""Bytes of a request."""

MAX_FILE = 8 << 20
"""Characters of an uploaded file, unpacked."""

WORK = "/api/"
"""Where addresses of what is computed begin."""

TRACE = "/api/trace"
"""Address that takes traces, which are larger than all else."""

MAX_TRACE = 48 << 20
"""Bytes of a request with traces."""

MAX_TRACE_FILES = 2048
MAX_FOLDERS = 6
MAX_TRACE_UNPACKED = 512 << 20
"""Bytes of all traces of a request, unpacked."""

MAX_TRACED = 400_000
"""Actions of a trace that are diagnosed."""

READING_TRACE = 60.0
"""Seconds in which a request with traces has to arrive."""

MAX_HELD = 96 << 20
"""Bytes of all requests that are being read or answered."""

READING = 10.0
"""Seconds in which a request has to arrive, its head and its body each."""

MAX_SCHEDULES = 24
MAX_RANKS = 512
MAX_MICROBATCHES = 1 << 16
MAX_CHUNKS = 64
MAX_ITERATIONS = 256

MAX_ACTIONS = 1_500_000
"""Actions of all schedules of a request together."""

SECONDS = 30.0
"""Time limit of a request, waiting for its turn included, in seconds."""

WAITING = 512
"""Requests that may wait for their turn."""

PER_MINUTE = 600
AT_ONCE = 16
"""Requests of one client to a server for others, in a minute and at a time, unless it says more."""

SEARCHES = 2
"""Searches that run at a time, one for each address."""

TRACE_SECONDS = 300.0
"""How long a diagnosis of traces takes at most."""

SEARCH_SECONDS = 60.0
"""Time limit of a search, after which the best so far is the answer."""

FASTER_SECONDS = 20.0
"""Time limit of a search for a faster order."""

UNHEARD = 5.0
"""Seconds after which a search that nobody asks after ends."""

MAX_SEARCHED = 100_000
"""Actions of a schedule that a faster order is sought for."""

MAX_GPUS = 1 << 16
MAX_BATCH = 1 << 16
MAX_SEQUENCE = 1 << 22
MAX_LAYERS = 512
MAX_MEASURED = 1 << 20
MAX_MODEL = 1 << 20
"""Characters of a model's file."""

CACHE_BYTES = 64 << 20
"""Memory for answers that may be asked for again."""

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # Perfetto is opened in a tab that has to be talked to.
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RefusedError(DebubbleError):
    """A request that is answered with an error, and an HTTP status.

    `field` is the field of the form that it is about, empty for none, and `nearest` the nearest
    value of it that works.
    """

    def __init__(
        self, message: str, field: str = "", nearest: Any = None, status: int = 422
    ) -> None:
        super().__init__(message)
        self.field = field
        self.nearest = nearest
        self.status = status

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data."""
        return {"message": str(self), "field": self.field, "nearest": self.nearest}


class Guard:
    """Refuses foreign hosts, foreign pages and large bodies; adds the headers to every answer.

    A page of another site can make a browser send requests here, also under a name of its own that
    leads to this machine. So the host has to be one we were started for, or an address in numbers,
    which is nobody's name; and a request that says where it comes from has to come from here.
    What each client asks for is limited where it is work; pages and scripts are none.
    """

    def __init__(self, app: App, hosts: frozenset[str], clients: Clients) -> None:
        self.app = app
        self.hosts = hosts
        self.clients = clients
        self.held = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        most = MAX_TRACE if scope["path"] == TRACE else MAX_BODY
        refusal = self._refusal(headers, most)
        if refusal is not None:
            status, text = refusal
            await _answer(guarded, status, text)
            return
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            taken += size
            self.held += size
            if taken > most:
                raise RefusedError(f"the request has more than {most:,} bytes", status=413)
            if self.held > MAX_HELD:
                raise RefusedError("too many large requests at once; try again", status=503)
            return message

        try:
            if scope["path"].startswith(WORK):
                address, _ = scope.get("client") or ("", 0)
                with self.clients.serving(address):
                    await self.app(scope, bounded, guarded)
            else:
                await self.app(scope, bounded, guarded)
        except TooManyError as error:
            await _answer(guarded, 429, str(error))
        finally:
            self.held -= taken

    def _refusal(self, headers: dict[str, str], most: int) -> tuple[int, str] | None:
        name = _name(headers.get("host", ""))
        if name not in self.hosts and not _is_address(name):
            return 421, "this server answers under its own name only"
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != headers["host"]:
            return 403, "requests of other pages are not answered"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            return 413, f"the request has more than {most:,} bytes"
        return None


def _name(host: str) -> str:
    """A host without its port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host


def _authority(origin: str) -> str | None:
    """Host and port of an origin, None when it is no address."""
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


async def _answer(send: Send, status: int, text: str) -> None:
    import json

    body = json.dumps({"message": text, "field": "", "nearest": None}).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 429:
        # What is left of a request that is not read is not waited for.
        kind.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": body})


class Cache:
    """Recent answers up to a number of bytes; the ones that were not used for longest go first."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: bytes) -> bytes | None:
        """An answer that was kept, else None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Keep an answer, unless it would take more than a quarter of the room."""
        with self._lock:
            if key in self._kept or len(value) > self.limit // 4:
                return
            self._kept[key] = value
            self.size += len(value)
            while self.size > self.limit:
                _, old = self._kept.popitem(last=False)
                self.size -= len(old)
