"""The web application: a page, its assets, and functions behind addresses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from debubble.analysis.metrics import MODES
from debubble.core.errors import DebubbleError
from debubble.playground import limits, work
from debubble.playground.catalogue import catalogue
from debubble.playground.clients import Clients, client_of
from debubble.playground.controls import choices, cost_controls
from debubble.playground.faster import faster
from debubble.playground.limits import Cache, Guard, RefusedError
from debubble.playground.searches import Search, Searches
from debubble.playground.state import Export, File, Look, Question, State, read
from debubble.playground.uploads import upload
from debubble.view import component

SCRIPTS = (
    "main", "dom", "server", "state", "controls", "link", "picker", "files", "answer", "plot",
    "cards", "plan", "faster", "trace"
)  # fmt: skip
ASSETS = {
    "/": ("index.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
}

log = logging.getLogger("debubble.playground")

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def make_app(
    hosts: frozenset[str] = frozenset({"localhost"}), clients: Clients | None = None
) -> Guard:
    """The application, for requests to hosts of these names and to addresses in numbers.

    `clients` limits what each of them may ask for; without it nothing does.
    """
    service = Service()
    routes = [Route(path, partial(_asset, name, kind)) for path, (name, kind) in ASSETS.items()]
    routes += [
        Route("/timeline.js", partial(_script, component.script)),
        Route("/shared.js", partial(_script, partial(component.asset, "timeline/shared.js"))),
        Route("/api/schedules", answering(service.schedules)),
        Route("/api/simulate", answering(service.simulate), methods=["POST"]),
        Route("/api/upload", answering(service.upload), methods=["POST"]),
        Route("/api/export", answering(service.export), methods=["POST"]),
        Route("/api/planner", answering(service.planner)),
        Route("/api/plan", answering(service.plan), methods=["POST"]),
        Route("/api/optimize", answering(service.optimize), methods=["POST"]),
        Route(limits.TRACE, answering(service.trace), methods=["POST"]),
        Route("/api/search", answering(service.search), methods=["POST"]),
    ]
    served = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    return Guard(served, hosts, clients or Clients())


def answering(endpoint: Endpoint) -> Endpoint:
    """The same endpoint, whose errors are answered as JSON that the page can show."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except DebubbleError as error:
            return _refusal(error)
        except Exception as error:
            log.exception("internal error in %s", request.url.path)
            return _refusal(
                RefusedError(
                    f"internal error: {type(error).__name__}; this is a bug, please report it "
                    "with what 'debubble serve' printed",
                    status=500,
                )
            )

    return answered


async def _not_served(request: Request, error: Any) -> Response:
    """An address or method that does not exist."""
    return _refusal(RefusedError(f"{request.url.path}: {error.detail}", status=error.status_code))


async def _asset(name: str, kind: str, request: Request) -> Response:  # noqa: ARG001
    folder = resources.files("debubble.playground").joinpath("assets")
    return Response(folder.joinpath(name).read_bytes(), media_type=kind)


async def _script(text: Callable[[], str], request: Request) -> Response:  # noqa: ARG001
    return Response(text(), media_type="text/javascript")


class Service:
    """Answers requests: a few at a time in threads, the others wait for their turn."""

    def __init__(self) -> None:
        workers = max(1, min(4, os.cpu_count() or 1))
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="work")
        self.turn = asyncio.Semaphore(workers)
        self.waiting = 0
        self.cache = Cache()
        self.searches = Searches()
        self.pool.submit(work.warm_up)

    async def schedules(self, request: Request) -> Response:  # noqa: ARG002
        """The registry, the p2p modes, and the controls of costs and lowerings."""
        return await self._answer(
            b"schedules",
            lambda: {
                "schedules": catalogue(),
                "modes": MODES,
                "costs": cost_controls(),
                "choices": choices(),
            },
        )

    async def simulate(self, request: Request) -> Response:
        """Timelines, ranking and problems of a state."""
        return await self._json(request, State, work.simulate)

    async def upload(self, request: Request) -> Response:
        """Kind and contents of an uploaded file."""
        return await self._json(request, File, upload)

    async def export(self, request: Request) -> Response:
        """A file to download."""
        wanted: Export = read(Export, await _body(request))
        content, kind, name = await self._run(partial(work.export, wanted))
        attachment = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=kind, headers=attachment)

    async def planner(self, request: Request) -> Response:  # noqa: ARG002
        """What plans can be asked for."""

        def inputs() -> dict[str, Any]:
            from debubble.playground import plans

            return plans.inputs()

        return await self._answer(b"planner", inputs)

    async def plan(self, request: Request) -> Response:
        """A search for plans, to be asked after."""
        question = read(Question, await _body(request))

        def find(running: Search) -> dict[str, Any]:
            from debubble.playground import plans

            return plans.plan(question, running)

        return self._started(request, find)

    async def optimize(self, request: Request) -> Response:
        """A search for a faster order, to be asked after."""
        return self._started(request, partial(faster, read(State, await _body(request))))

    async def trace(self, request: Request) -> Response:
        """A diagnosis of traces, to be asked after."""
        body = await _body(request, "application/octet-stream", limits.READING_TRACE)

        def find(running: Search) -> dict[str, Any]:
            from debubble.playground import traces

            return traces.trace(body, running)

        return self._started(request, find)

    async def search(self, request: Request) -> Response:
        """How far a search is, or its answer."""
        look: Look = read(Look, await _body(request))
        progress, answer = self.searches.look(look.search, look.stop)
        content = _encoded({"done": answer is not None, **progress})
        if answer is not None:
            content = content[:-1] + b',"answer":' + answer + b"}"
        return Response(content, media_type="application/json")

    def _started(self, request: Request, find: Callable[[Search], Any]) -> Response:
        client = request.client.host if request.client else ""
        name = self.searches.start(client_of(client), lambda running: _encoded(find(running)))
        return Response(_encoded({"search": name}), media_type="application/json")

    async def _json(self, request: Request, model: Any, compute: Callable[[Any], Any]) -> Response:
        body = await _body(request)
        return await self._answer(
            request.url.path.encode() + body, partial(compute, read(model, body))
        )

    async def _answer(self, question: bytes, compute: Callable[[], Any]) -> Response:
        """The answer that is kept, or a new one."""
        key = hashlib.blake2b(question, digest_size=16).digest()
        content = self.cache.get(key)
        if content is None:
            content = await self._run(lambda: _encoded(compute()))
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


async def _body(
    request: Request, wanted: str = "application/json", seconds: float | None = None
) -> bytes:
    """The bytes of a request; one that a form of another page could send is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind.strip().lower() != wanted:
        raise RefusedError(f"send {wanted}", status=415)
    seconds = limits.READING if seconds is None else seconds
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise RefusedError(
            f"the request took more than {seconds:g} s to arrive; send it again", status=408
        ) from None


def _encoded(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _refusal(error: DebubbleError) -> Response:
    refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
    # What is left of a request that was not read to its end is not waited for.
    headers = {"connection": "close"} if refused.status in (408, 413, 415) else {}
    return Response(_encoded(refused.to_dict()), refused.status, headers, "application/json")
