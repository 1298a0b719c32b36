"""What commands load: for the server of :mod:`tests.forkserver` where tests kill many of them."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from tests.kernels import CASES, run_by

for name in (
    "debubble.cli.app",
    "debubble.cli.export",
    "debubble.cli.optimize",
    "debubble.optimize.search",
    "ortools.sat.python",
    "debubble.sweeps.commands",
    "tests.sweeps.sweeper",
):
    # Where something is not installed the tests that need it are skipped.
    with suppress(ImportError):
        import_module(name)

with run_by(compiled=True):
    for name in ("work", "search"):
        CASES[name]()
