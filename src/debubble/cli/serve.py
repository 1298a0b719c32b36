"""``debubble serve``: the playground in a browser."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from typing import Annotated

import typer

from debubble.cli.app import command
from debubble.cli.options import Text, takes
from debubble.cli.output import note
from debubble.core.errors import ParameterError
from debubble.core.options import read_whole


def serve(
    port: Annotated[int, takes("N", "Port; 0 for a free one.")] = 8642,
    host: Annotated[str, takes("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    name: Annotated[
        list[str] | None, takes("NAME", "Host name behind a proxy (repeatable).")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        takes("ADDRESS", "Trusted proxy or network for X-Forwarded-For."),
    ] = None,
    per_minute: Annotated[
        Text, takes("N", "Limit of a client's requests per minute; 0 for none.")
    ] = None,
    at_once: Annotated[
        Text, takes("N", "Limit of a client's concurrent requests; 0 for none.")
    ] = None,
) -> None:
    """Try schedules in a browser.

    Opens a page on this computer to choose schedules, move sliders, and see timelines, numbers and
    the trade-off between time and memory. It needs no network; Ctrl-C ends it. With --host, --name
    or --proxy it also serves others, with limits for each client.
    """
    try:
        import uvicorn

        from debubble.playground import limits
        from debubble.playground.app import make_app
        from debubble.playground.connection import PromptProtocol
        from debubble.playground.guard import Clients
    except ImportError as error:
        raise ParameterError(
            f"the playground needs {error.name}; install it with: pip install 'debubble[serve]'"
        ) from None
    if not 0 <= port <= 65535:
        raise ParameterError(f"--port is {port}; ports go from 0 to 65535")
    if not host.strip():
        raise ParameterError(
            "--host is empty; give 127.0.0.1 for this computer alone, or 0.0.0.0 for everybody"
        )
    trusted = _networks(proxy or [])
    for_others = bool(name or proxy) or not _is_loopback(host)
    clients = Clients(
        _share("--per-minute", per_minute, limits.PER_MINUTE if for_others else 0),
        _share("--at-once", at_once, limits.AT_ONCE if for_others else 0),
    )
    listener = _listen(host, port)
    found = listener.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{found}/"
    if not _is_loopback(host):
        note(f"debubble: everybody who reaches {host} can use this server")
    note(f"debubble: playground at {address} (Ctrl-C ends it)")
    if browser:
        _open_later(address)
    config = uvicorn.Config(
        make_app(frozenset({"localhost", host, *(name or [])}), clients),
        http=PromptProtocol,
        proxy_headers=bool(trusted),
        forwarded_allow_ips=trusted,
        log_level="warning",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=20,
        limit_concurrency=1024,
        h11_max_incomplete_event_size=1 << 16,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _share(flag: str, text: str | None, usual: int) -> int:
    return usual if text is None else read_whole(flag, text, 0, 1_000_000)


def _networks(addresses: list[str]) -> list[str]:
    """Return the networks of proxies; refuse words that would trust no host, or every one."""
    for address in addresses:
        try:
            everybody = ipaddress.ip_network(address).prefixlen == 0
        except ValueError:
            everybody = True
        if everybody:
            raise ParameterError(
                f"--proxy is '{address}'; give an address such as 127.0.0.1, or a network such as "
                "10.0.0.0/8"
            )
    return addresses


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ParameterError(
            f"cannot listen on {host}, port {port}: {reason}; --port 0 takes a free port"
        ) from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _open_later(address: str) -> None:
    """Open a browser, if there is one, when the server has had time to start."""
    import threading
    import webbrowser

    timer = threading.Timer(0.4, webbrowser.open, [address])
    timer.daemon = True
    timer.start()


app = command(
    serve,
    [
        "serve",
        "serve --port 9000",
        "serve --port 0 --no-browser",
        "serve --no-browser --name schedules.example.org --proxy 127.0.0.1",
    ],
)
