"""The web application: a page, its assets, and four functions behind addresses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from debubble.core.errors import DebubbleError
from debubble.playground import limits, work
from debubble.playground.limits import Cache, Guard, RefusedError
from debubble.playground.state import Export, File, State, read
from debubble.view import component

ASSETS = {
    "/": ("index.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    "/playground.js": ("playground.js", "text/javascript"),
}


def make_app(hosts: frozenset[str] = frozenset({"localhost"})) -> Guard:
    """The application, for requests to hosts of these names and to addresses in numbers."""
    service = Service()
    routes = [Route(path, partial(_asset, name, kind)) for path, (name, kind) in ASSETS.items()]
    routes += [
        Route("/timeline.js", _component),
        Route("/api/schedules", service.schedules),
        Route("/api/simulate", service.simulate, methods=["POST"]),
        Route("/api/upload", service.upload, methods=["POST"]),
        Route("/api/export", service.export, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), hosts)


async def _asset(name: str, kind: str, request: Request) -> Response:  # noqa: ARG001
    folder = resources.files("debubble.playground").joinpath("assets")
    return Response(folder.joinpath(name).read_bytes(), media_type=kind)


async def _component(request: Request) -> Response:  # noqa: ARG001
    return Response(component.script(), media_type="text/javascript")


class Service:
    """Answers requests: a few at a time in threads, the others wait for their turn."""

    def __init__(self) -> None:
        workers = max(1, min(4, os.cpu_count() or 1))
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="work")
        self.turn = asyncio.Semaphore(workers)
        self.waiting = 0
        self.cache = Cache()
        self.pool.submit(work.warm_up)

    async def schedules(self, request: Request) -> Response:  # noqa: ARG002
        """The registry."""
        return await self._answer(b"schedules", lambda: _encoded(work.catalogue()))

    async def simulate(self, request: Request) -> Response:
        """Timelines, ranking and problems of a state."""
        return await self._json(request, State, lambda state: _encoded(work.simulate(state)))

    async def upload(self, request: Request) -> Response:
        """What a file is."""
        return await self._json(request, File, lambda file: _encoded(work.upload(file)))

    async def export(self, request: Request) -> Response:
        """A file to download."""
        try:
            body = await _body(request)
            wanted: Export = read(Export, body)
            content, kind, name = await self._run(partial(work.export, wanted))
        except DebubbleError as error:
            return _refusal(error)
        attachment = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=kind, headers=attachment)

    async def _json(
        self, request: Request, model: Any, compute: Callable[[Any], bytes]
    ) -> Response:
        try:
            body = await _body(request)
            value = read(model, body)
        except DebubbleError as error:
            return _refusal(error)
        return await self._answer(request.url.path.encode() + body, lambda: compute(value))

    async def _answer(self, question: bytes, compute: Callable[[], bytes]) -> Response:
        """The answer that is kept, or a new one."""
        key = hashlib.blake2b(question, digest_size=16).digest()
        content = self.cache.get(key)
        if content is None:
            try:
                content = await self._run(compute)
            except DebubbleError as error:
                return _refusal(error)
            self.cache.put(key, content)
        return Response(content, media_type="application/json")

    async def _run(self, compute: Callable[[], Any]) -> Any:
        """The result of a function, in a thread, in its turn, within the time there is."""
        if self.waiting >= limits.WAITING:
            raise RefusedError("too many requests are waiting; try again", status=503)
        self.waiting += 1
        try:
            async with asyncio.timeout(limits.SECONDS), self.turn:
                return await asyncio.get_running_loop().run_in_executor(self.pool, compute)
        except TimeoutError:
            raise RefusedError(
                f"no answer within {limits.SECONDS:g} s; use fewer microbatches", status=503
            ) from None
        except MemoryError:
            raise RefusedError("not enough memory; use fewer microbatches", status=413) from None
        finally:
            self.waiting -= 1


async def _body(request: Request) -> bytes:
    """The bytes of a request; one that a form of another page could send is refused."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise RefusedError("send application/json", status=415)
    return await request.body()


def _encoded(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _refusal(error: DebubbleError) -> Response:
    refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
    return Response(
        _encoded(refused.to_dict()), status_code=refused.status, media_type="application/json"
    )
