"""Every client has its share of a server, and whom a request comes from is not its own word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import uvicorn

from debubble.cli.app import app as program
from debubble.playground import guard, limits, work
from debubble.playground.app import make_app
from debubble.playground.guard import Clients, client_of
from debubble.playground.limits import RefusedError


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed here, so nothing has to be loaded for it."""
    monkeypatch.setattr(work, "warm_up", lambda: None)


def test_a_minute_holds_so_many_requests_and_refills_evenly() -> None:
    now = [0.0]
    share = Clients(per_minute=6, clock=lambda: now[0])

    def served(address: str) -> bool:
        try:
            with share.serving(address):
                return True
        except RefusedError:
            return False

    assert [served("1.1.1.1") for _ in range(7)] == [True] * 6 + [False]
    assert served("2.2.2.2")  # others have their own
    now[0] = 9.0
    message = "more than 6 requests in a minute; try again in 1 s"
    with pytest.raises(RefusedError, match=message), share.serving("1.1.1.1"):
        pass
    now[0] = 10.0
    assert [served("1.1.1.1") for _ in range(2)] == [True, False]
    now[0] = 1000.0  # a long quiet time is worth no more than a minute
    assert [served("1.1.1.1") for _ in range(7)] == [True] * 6 + [False]


def test_so_many_requests_are_under_way_at_a_time() -> None:
    share = Clients(at_once=2)
    with share.serving("1.1.1.1"):
        with share.serving("1.1.1.1"):
            with pytest.raises(RefusedError, match="2 requests of yours"), share.serving("1.1.1.1"):
                pass
            with share.serving("1.1.1.2"):
                pass
        with pytest.raises(ZeroDivisionError), share.serving("1.1.1.1"):
            raise ZeroDivisionError  # a request that fails is over, too
        with share.serving("1.1.1.1"):
            pass


def test_nothing_is_limited_unless_said() -> None:
    share = Clients()
    for _ in range(2000):
        with share.serving("1.1.1.1"):
            assert share.per_minute == share.at_once == 0


def test_quiet_clients_are_forgotten_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_CLIENTS", 3)
    share = Clients(at_once=1)
    with share.serving("0.0.0.1"):
        for last in range(2, 20):
            with share.serving(f"0.0.0.{last}"):
                assert len(share._known) <= 3
        with pytest.raises(RefusedError), share.serving("0.0.0.1"):
            pass


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_whom_an_address_stands_for(address: str, name: str) -> None:
    assert client_of(address) == name


def statuses(app: Any, requests: list[tuple[str, dict[str, str]]], peer: str) -> list[int]:
    """Statuses of requests to a path with headers, from one peer."""

    async def send() -> list[int]:
        transport = httpx.ASGITransport(app=app, client=(peer, 4000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [(await client.get(path, headers=head)).status_code for path, head in requests]

    return asyncio.run(send())


def test_work_is_limited_and_pages_are_not() -> None:
    app = make_app(clients=Clients(per_minute=2))
    api, page = ("/api/nothing", {}), ("/", {})
    assert statuses(app, [page, page, api, api, api, page], "192.0.2.1") == [
        200, 200, 404, 404, 429, 200,
    ]  # fmt: skip
    assert statuses(app, [api], "192.0.2.2") == [404]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., uvicorn.Config]:
    """What ``debubble serve`` would serve with some options."""

    def call(*words: str) -> uvicorn.Config:
        found = []
        monkeypatch.setattr(
            uvicorn.Server, "run", lambda self, sockets: [s.close() for s in sockets]
            and found.append(self.config)
        )  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            program(["serve", "--port", "0", "--no-browser", *words], prog_name="debubble")
        assert ended.value.code == 0
        [config] = found
        config.load()
        return config

    return call


def test_only_a_trusted_proxy_says_whom_a_request_comes_from(
    served: Callable[..., uvicorn.Config],
) -> None:
    app = served(
        "--proxy", "10.0.0.0/8", "--name", "schedules.example.org", "--per-minute", "1"
    ).loaded_app
    path = "/api/nothing"

    def of(client: str) -> dict[str, str]:
        return {"host": "schedules.example.org", "x-forwarded-for": client}

    by_proxy = [(path, of("192.0.2.1")), (path, of("192.0.2.2")), (path, of("192.0.2.1"))]
    assert statuses(app, by_proxy, "10.1.2.3") == [404, 404, 429]
    # A client's own words stand before what the proxy adds, and do not count.
    assert statuses(app, [(path, of("203.0.113.9, 192.0.2.2"))], "10.1.2.3") == [429]
    # Nor does what somebody else says who reaches the server without the proxy.
    direct = [(path, of("198.51.100.1")), (path, of("198.51.100.2"))]
    assert statuses(app, direct, "192.0.2.77") == [404, 429]
    assert statuses(app, [(path, {"host": "other.example.org"})], "10.1.2.3") == [421]


def test_this_computer_alone_is_not_limited(served: Callable[..., uvicorn.Config]) -> None:
    guard = served().app
    assert (guard.clients.per_minute, guard.clients.at_once) == (0, 0)
    others = served("--name", "a.example.org").app.clients
    assert (others.per_minute, others.at_once) == (limits.PER_MINUTE, limits.AT_ONCE)
    own = served("--per-minute", "30", "--at-once", "0").app.clients
    assert (own.per_minute, own.at_once) == (30, 0)
    # Without a proxy nobody's word counts, not even that of this computer.
    requests = [("/api/nothing", {"x-forwarded-for": f"192.0.2.{n}"}) for n in range(3)]
    app = served("--per-minute", "2").loaded_app
    assert statuses(app, requests, "127.0.0.1") == [404, 404, 429]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--proxy", "*"), "give an address such as 127.0.0.1"),
        (("--proxy", "0.0.0.0/0"), "give an address such as 127.0.0.1"),
        (("--proxy", "nginx"), "give an address such as 127.0.0.1"),
        (("--per-minute", "-1"), "--per-minute is '-1'; give a whole number from 0"),
        (("--at-once", "many"), "--at-once is 'many'; give a whole number from 0"),
    ],
)
def test_what_cannot_be_served_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program(["serve", "--port", "0", *words], prog_name="debubble")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_refusal_is_an_answer_that_the_page_can_show() -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=make_app(clients=Clients(per_minute=1)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.get("/api/nothing")
            return await client.get("/api/nothing")

    answer = asyncio.run(ask())
    assert answer.status_code == 429
    assert "try again in" in json.loads(answer.content)["message"]
    assert answer.headers["x-content-type-options"] == "nosniff"
