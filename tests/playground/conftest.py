"""The playground's application, in this process and as a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patience


@pytest.fixture(scope="session")
def ask() -> Callable[..., Any]:
    """Send a request to the application and return the answer."""
    import asyncio

    import httpx

    from debubble.playground import limits
    from debubble.playground.app import make_app

    app = make_app()
    quiet = limits.SECONDS
    loop = asyncio.new_event_loop()
    transport = httpx.ASGITransport(app=app)
    client = httpx.AsyncClient(
        transport=transport, base_url="http://localhost", timeout=patience(120)
    )

    def call(path: str, data: Any = None, **options: Any) -> Any:
        limits.SECONDS = patience(quiet)
        if data is None:
            return loop.run_until_complete(client.request("GET", path, **options))
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        return loop.run_until_complete(
            client.request("POST", path, content=content, headers=headers, **options)
        )

    yield call
    limits.SECONDS = quiet
    loop.run_until_complete(client.aclose())
    loop.close()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of ``debubble serve`` in a process of its own."""
    program = Path(sys.executable).with_name("debubble")
    process = subprocess.Popen(
        [program, "serve", "--port", "0", "--no-browser"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("debubble: playground at http://127.0.0.1:"), line
    yield line.split()[3]
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=patience(120))
    assert (process.returncode, rest) == (0, "")
