"""Constraint programs for OR-Tools CP-SAT."""

from __future__ import annotations


class SolverModel:
    """A constraint program and its solver."""

    def __init__(self) -> None:
        from ortools.sat.python import cp_model

        self.model, self.solver = cp_model.CpModel(), cp_model.CpSolver()

    def run(self, work: float, seconds: float, workers: int, seed: int) -> bool | None:
        """Return whether there is a solution; None where that is open.

        `work` is the solver's own unit, about a second; :meth:`stop` ends it early. Ctrl-C is not
        the solver's: searches hear it.
        """
        from ortools.sat.python import cp_model

        parameters = self.solver.parameters
        parameters.max_deterministic_time = work
        parameters.max_time_in_seconds = seconds
        parameters.num_workers = workers
        parameters.random_seed = seed
        parameters.catch_sigint_signal = False
        status = self.solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return False
        return True if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None

    def stop(self) -> None:
        """End a running search soon; callable from another thread."""
        self.solver.stop_search()
