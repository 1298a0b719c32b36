"""Sweeps: one command at every point of a grid, or at random draws, on one computer or a cluster.

A spec (:mod:`~debubble.planner.sweeps.spec`) says which points; a table of commands
(:mod:`~debubble.planner.sweeps.commands`) what is computed at each; joblib where
(:mod:`~debubble.planner.sweeps.backends`); and an SQLite file keeps the results
(:mod:`~debubble.planner.sweeps.store`).
"""

from debubble.planner.sweeps.points import Range, Spec
from debubble.planner.sweeps.run import Progress, run
from debubble.planner.sweeps.spec import read_spec, spec_of
from debubble.planner.sweeps.table import Results

__all__ = ["Progress", "Range", "Results", "Spec", "read_spec", "run", "spec_of"]
