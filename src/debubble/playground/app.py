"""Web application of the playground: a page, its assets, and functions at addresses."""

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

from debubble.core.errors import DebubbleError
from debubble.playground import examples, limits, plans, traces, work
from debubble.playground.controls import page_lists
from debubble.playground.faster import faster
from debubble.playground.guard import Clients, Guard, client_of, refusal
from debubble.playground.limits import RefusedError
from debubble.playground.searches import Search, Searches
from debubble.playground.state import ExportRequest, File, PageState, PlanForm, Poll, Strict, read
from debubble.playground.uploads import upload
from debubble.view import page
from debubble.view.plan_page import VIEW_PARTS

SCRIPTS = (
    "main", "dom", "server", "state", "undo", "controls", "hint", "link", "picker", "listbox",
    "files", "answer", "tiles", "plot", "cards", "plan", "faster", "trace"
)  # fmt: skip


def asset(name: str) -> str:
    """Return the text of a file in ``assets/``."""
    return resources.files("debubble.playground").joinpath("assets", name).read_text("utf-8")


PARTS: dict[str, Callable[[], str]] = {
    "/": partial(asset, "index.html"),
    "/playground.css": partial(asset, "playground.css"),
    **{f"/{name}.js": partial(asset, f"{name}.js") for name in SCRIPTS},
    "/timeline.js": page.script,
    "/shared.js": partial(page.asset, "timeline/shared.js"),
    **{f"/{name}.js": partial(page.asset, f"plan/{name}.js") for name in VIEW_PARTS},
    "/plan.css": partial(page.asset, "plan/plan.css"),
}
"""Text at every address of the page and its parts."""

MEDIA = {"": "text/html", "css": "text/css", "js": "text/javascript"}
"""Media types by the ending of an address."""

BYTES = "application/octet-stream"

log = logging.getLogger("debubble.playground")

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def make_app(
    hosts: frozenset[str] = frozenset({"localhost"}), clients: Clients | None = None
) -> Guard:
    """Return the application, for requests to hosts of these names and to addresses in numbers.

    `clients` limits the requests of each of them; by default there is no limit.
    """
    service = Service()
    routes = [Route(path, _part) for path in PARTS]
    asked: dict[str, Endpoint] = {
        "schedules": service.listing(page_lists), "planner": service.listing(plans.inputs),
        "example-plan": service.listing(examples.example_plan),
        "example-report": service.listing(examples.example_report),
    }  # fmt: skip
    sent: dict[str, Endpoint] = {
        # Found when called, so that a test can put another one in its place.
        "simulate": service.computing(PageState, lambda state: work.simulate(state)),
        "upload": service.computing(File, upload),
        "export": service.export,
        "plan": service.searching(PlanForm, plans.plan),
        "optimize": service.searching(PageState, faster),
        "trace": service.trace,
        "search": service.search,
    }
    for method, endpoints in (("GET", asked), ("POST", sent)):
        routes += [
            Route(f"{limits.WORK}{name}", answering(endpoint), methods=[method])
            for name, endpoint in endpoints.items()
        ]
    served = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    return Guard(served, hosts, clients or Clients())


def answering(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers errors as JSON for the page."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except DebubbleError as error:
            return refusal(error)
        except Exception as error:
            log.exception("internal error in %s", request.url.path)
            return refusal(
                RefusedError(
                    f"internal error: {type(error).__name__}; this is a bug, please report it "
                    "with what 'debubble serve' printed",
                    status=500,
                )
            )

    return answered


async def _not_served(request: Request, error: Any) -> Response:
    """Answer an address or method that does not exist."""
    return refusal(RefusedError(f"{request.url.path}: {error.detail}", status=error.status_code))


async def _part(request: Request) -> Response:
    path = request.url.path
    return Response(PARTS[path](), media_type=MEDIA[path.rpartition(".")[2].strip("/")])


class Service:
    """Endpoints of the application: a few work at a time in threads, others wait for their turn."""

    def __init__(self) -> None:
        workers = max(1, min(4, os.cpu_count() or 1))
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="work")
        self.turn = asyncio.Semaphore(workers)
        self.waiting = 0
        self.cache = Cache()
        self.searches = Searches()
        self.pool.submit(work.warm_up)

    def listing(self, compute: Callable[[], Any]) -> Endpoint:
        """Return an endpoint that answers what is the same for all requests."""

        async def listed(request: Request) -> Response:
            return await self._answer(request.url.path.encode(), compute)

        return listed

    def computing(self, model: type[Strict], compute: Callable[[Any], Any]) -> Endpoint:
        """Return an endpoint that answers the result of a function of a request."""

        async def computed(request: Request) -> Response:
            body = await _body(request)
            question = request.url.path.encode() + body
            return await self._answer(question, partial(compute, read(model, body)))

        return computed

    def searching(self, model: type[Strict], find: Callable[[Any, Search], Any]) -> Endpoint:
        """Return an endpoint that starts a search and answers its name."""

        async def started(request: Request) -> Response:
            return self._start(request, partial(find, read(model, await _body(request))))

        return started

    async def trace(self, request: Request) -> Response:
        """Start a diagnosis of the traces in a request."""
        body = await _body(request, BYTES, limits.READING_TRACE)
        return self._start(request, partial(traces.trace, body))

    async def export(self, request: Request) -> Response:
        """Answer a file to download."""
        wanted: ExportRequest = read(ExportRequest, await _body(request))
        content, kind, name = await self._run(partial(work.export, wanted))
        attachment = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=kind, headers=attachment)

    async def search(self, request: Request) -> Response:
        """Answer the progress of a search, or its result."""
        poll: Poll = read(Poll, await _body(request))
        progress, answer = self.searches.poll(poll.search, poll.stop)
        content = _encoded({"done": answer is not None, **progress})
        if answer is not None:
            content = content[:-1] + b',"answer":' + answer + b"}"
        return Response(content, media_type="application/json")

    def _start(self, request: Request, find: Callable[[Search], Any]) -> Response:
        client = request.client.host if request.client else ""
        name = self.searches.start(client_of(client), lambda running: _encoded(find(running)))
        return Response(_encoded({"search": name}), media_type="application/json")

    async def _answer(self, question: bytes, compute: Callable[[], Any]) -> Response:
        """Answer from the cache, or compute."""
        key = hashlib.blake2b(question, digest_size=16).digest()
        content = self.cache.get(key)
        if content is None:
            content = await self._run(lambda: _encoded(compute()))
            self.cache.put(key, content)
        return Response(content, media_type="application/json")

    async def _run(self, compute: Callable[[], Any]) -> Any:
        """Return the result of a function, in a thread, in its turn, within the time limit."""
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


class Cache:
    """Recent answers up to a number of bytes; the longest unused go first."""

    def __init__(self, limit: int = limits.CACHE_BYTES) -> None:
        self.limit = limit
        self.size = 0
        # In order of use, the latest last. Only the event loop's thread comes here.
        self._kept: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return an answer that was kept, else None."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Keep an answer, unless it would take more than a quarter of the room."""
        if key in self._kept or len(value) > self.limit // 4:
            return
        self._kept[key] = value
        self.size += len(value)
        while self.size > self.limit:
            self.size -= len(self._kept.pop(next(iter(self._kept))))


async def _body(
    request: Request, wanted: str = "application/json", seconds: float | None = None
) -> bytes:
    """Return the bytes of a request; one that a form of another page could send is refused."""
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
