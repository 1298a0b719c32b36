"""Requests to the playground's application in this process, without a network."""

from __future__ import annotations

import asyncio
import atexit
import json
import time
from functools import cache
from itertools import count
from typing import Any

from debubble.core.errors import DebubbleError
from debubble.playground import limits
from tests.patience import patience

REFUSALS = (400, 403, 404, 405, 408, 410, 413, 415, 421, 422, 429, 503)
CLIENTS = (f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in count())
"""Addresses that requests come from: what one client may ask for is limited."""
LIMIT = 100.0
"""Seconds that an answer may take: more than any limit of the server."""


@cache
def _server() -> tuple[asyncio.AbstractEventLoop, Any]:
    from debubble.playground.app import make_app

    # A search takes no longer than it takes to see that it works.
    limits.FASTER_SECONDS = 0.5
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop, make_app()


async def _answer(
    app: Any, method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]]
) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []
    # A body arrives in two pieces.
    half = len(body) // 2
    coming = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]

    async def receive() -> dict[str, Any]:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": (next(CLIENTS), 1),
        "server": ("127.0.0.1", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) == 1, sent
    content = b"".join(message.get("body", b"") for message in sent)
    return starts[0]["status"], content


def ask(route: str, body: bytes) -> Any:
    """The answer of a route.

    Raises
    ------
    DebubbleError
        When the request was refused, as it may be.
    """
    loop, app = _server()
    path = "/api/simulate" if route == "any" else f"/api/{route}"
    kind = b"application/octet-stream" if route == "trace" else b"application/json"
    headers = [(b"host", b"localhost"), (b"content-type", kind)]
    if route == "any" and body:
        # Anything at all about a request: its first bytes say what.
        path = ("/api/simulate", "/api/nothing", "/", "/api/schedules", "/../x")[body[0] % 5]
        headers = [(b"host", (b"localhost", body[:20], b"")[body[-1] % 3]),
                   (b"origin", body[:30]), (b"content-length", body[:5]),
                   (b"content-type", (kind, body[:20])[body[0] % 2])]  # fmt: skip
    method = "GET" if route == "any" and body[:1] < b"0" else "POST"
    status, content = loop.run_until_complete(_answer(app, method, path, body, headers))
    found = _checked(status, content, route)
    if route in ("plan", "optimize", "trace"):
        found = _searched(loop, app, found["search"])
    return found


def _checked(status: int, content: bytes, route: str) -> Any:
    assert status == 200 or status in REFUSALS, (status, content[:2000])
    if status != 200:
        raise DebubbleError(json.loads(content)["message"])
    return json.loads(content) if route not in ("any", "export") else content


def _searched(loop: asyncio.AbstractEventLoop, app: Any, name: str) -> Any:
    """The answer of a search, which is asked to end after a look or two."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    end = time.monotonic() + patience(LIMIT)
    looks = 0
    while time.monotonic() < end:
        body = json.dumps({"search": name, "stop": looks > 20}).encode()
        status, content = loop.run_until_complete(
            _answer(app, "POST", "/api/search", body, headers)
        )
        found = _checked(status, content, "search")
        if found["done"]:
            return found
        looks += 1
        time.sleep(0.005)
    raise AssertionError("the search did not end")
