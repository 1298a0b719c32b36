"""Sweeps: one command at every point of a grid, or at random draws, on one computer or a cluster.

A spec (:mod:`~debubble.sweeps.spec`) has the points; a table of commands
(:mod:`~debubble.sweeps.commands`) the computation at each; joblib runs it in processes or on a
cluster (:mod:`~debubble.sweeps.backends`); and an SQLite file keeps the results
(:mod:`~debubble.sweeps.store`).
"""

from typing import Any

from debubble.core.errors import deprecated
from debubble.sweeps.points import Range, Spec
from debubble.sweeps.run import Progress, run
from debubble.sweeps.spec import read_spec, spec_of
from debubble.sweeps.table import Results

__all__ = ["Progress", "Range", "Results", "Spec", "read_spec", "run", "spec_of"]


def by_name(name: str) -> Any:
    """Return one of :data:`__all__` to a caller who has its former module."""
    if name not in __all__:
        raise AttributeError(f"module 'debubble.sweeps' has no attribute '{name}'")
    deprecated("debubble.planner.sweeps", "debubble.sweeps", gone="0.3")
    return globals()[name]
