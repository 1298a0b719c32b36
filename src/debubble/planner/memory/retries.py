"""Seconds that PyTorch's allocator adds to a step where memory is short.

Where no block of memory is free and the GPU gives none, the allocator waits for all kernels, gives
back what it holds, and allocates anew. A microbatch that finds no room does that over and over.
"""

from __future__ import annotations

import math

RETRY = 2e-11
"""Seconds per byte that comes and goes and microbatch. Ten steps of Llama 8B in nanotron on H100,
with peaks from 71 to 77 of 79 GiB, took 18 to 27 ms per GB and microbatch longer than the model
says, and their neighbors with less than 69 GiB none (Ultra-Scale Playbook, 2025)."""

DEVIATIONS = 1.2816
"""Standard deviations from the median of a normal distribution to its 90th percentile."""


def chance_of_retries(peak: float, capacity: float, error: float) -> float:
    """Return the probability that a real peak exceeds the capacity.

    Real peaks over the predicted one are log-normal, with `error` at the 90th percentile.
    """
    if error <= 0 or math.isinf(capacity):
        return float(peak > capacity)
    deviations = math.log(capacity / peak) / math.log1p(error) * DEVIATIONS
    return 0.5 * math.erfc(deviations / math.sqrt(2))


def retry_time(dynamic: float, microbatches: int) -> float:
    """Return seconds per step that retries add, from the bytes that come and go on a rank."""
    return RETRY * dynamic * microbatches
