"""Runs of OR-Tools CP-SAT within limits."""

from __future__ import annotations

from typing import Any


def run_solver(
    solver: Any, model: Any, work: float, seconds: float, workers: int, seed: int
) -> Any:
    """Run a solver on a model and return its status.

    `work` is the solver's own unit, about a second. Ctrl-C is not the solver's: searches hear it.
    """
    parameters = solver.parameters
    parameters.max_deterministic_time = work
    parameters.max_time_in_seconds = seconds
    parameters.num_workers = workers
    parameters.random_seed = seed
    parameters.catch_sigint_signal = False
    return solver.solve(model)
