"""Sweeps: one command at every point of a grid, or at random draws, on one computer or a cluster.

A spec (:mod:`~debubble.sweeps.spec`) says which points; a table of commands
(:mod:`~debubble.sweeps.commands`) what is computed at each; joblib where
(:mod:`~debubble.sweeps.backends`); and an SQLite file keeps the results
(:mod:`~debubble.sweeps.store`).
"""

from debubble.sweeps.points import Range, Spec
from debubble.sweeps.run import Progress, run
from debubble.sweeps.spec import read_spec, spec_of
from debubble.sweeps.table import Results

__all__ = ["Progress", "Range", "Results", "Spec", "read_spec", "run", "spec_of"]
