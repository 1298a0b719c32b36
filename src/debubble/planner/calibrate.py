"""Efficiencies: the share of modelled compute speed that a GPU reaches in training."""

from __future__ import annotations

from dataclasses import dataclass

from debubble.planner.gpus import Gpu


@dataclass(frozen=True)
class Factors:
    """Efficiencies by GPU, tensor-parallel degree and precision."""

    table: tuple[tuple[tuple[str, int, str], float], ...] = ()
    error: float = 0.1

    def efficiency(self, gpu: Gpu, tp: int, precision: str) -> float:
        """Share of the modelled speed of kernels that training reaches."""
        return dict(self.table).get((gpu.name, tp, precision), 1.0)
