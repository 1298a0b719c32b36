"""Made runs with the statistics that were published of real ones.

``SE``, ``AR`` and ``ST`` are the jobs of StragglerAnalysis (arXiv 2505.05713) whose traces are
public; `interleaved` is a job of Primus on eight ranks. Only numbers are taken over: sizes, mean
times, coefficients of variation, correlations.
"""

from __future__ import annotations

import numpy as np

import debubble as db
from tests.diagnosis.made import At, Made, one_f_one_b


def stage_imbalance(seed: int = 0) -> Made:
    """ST: 2 copies of 4 stages, 4 microbatches; the last stage's F × 2.1, B × 1.43, cv 3 %."""
    factor = {"F": 2.1, "B": 1.43}

    def time(_: np.random.Generator, at: At) -> float:
        return factor[at.kind] if at.stage == 3 else 1.0

    return Made(one_f_one_b(4, 4), steps=8, seed=seed, base={"F": 67e-3, "B": 140e-3},
                noise=0.03, time=time, latency=lambda *_: 0.5e-3)  # fmt: skip


def sequence_lengths(seed: int = 0, copies: int = 32) -> Made:
    """SE: 32 copies of 2 stages, 8 microbatches; S = 1.5374, M_S = 0.6877, M_W = 0.0251.

    Within a worker Pearson's r of F and B is 0.99, cv of F 0.15 to 0.29, of B 0.32 to 0.44; copies
    are alike within 3 %. The last stage has more to do, or M_S were a half.
    """
    drawn = np.exp(np.random.default_rng(seed).normal(0.0, 0.29, (6, copies, 8)))
    longer = drawn / drawn.mean() - 1
    spread, heavy = {"F": 0.85, "B": 1.4}, {"F": 1.45, "B": 1.22}

    def time(_: np.random.Generator, at: At) -> float:
        more = spread[at.kind] * float(longer[at.step, at.copy, at.microbatch])
        return max(0.1, 1 + more) * (heavy[at.kind] if at.stage == 1 else 1.0)

    return Made(one_f_one_b(2, 8), copies=copies, steps=6, seed=seed,
                base={"F": 60e-3, "B": 120e-3}, noise=0.016, time=time)  # fmt: skip


def slow_worker(seed: int = 0) -> Made:
    """AR: 4 copies of 4 stages, 32 microbatches; S = 1.9730, M_S = 0, M_W = 1.

    Rank 0 of copy 0 takes 2.5 times as long with forwards and a little less with backwards, the
    other 15 are within 0.6 % of their stage; cv of steps 1.6 %.
    """
    steps = 1 + 0.016 * np.random.default_rng(seed).standard_normal(4)
    slow = {"F": 546 / 217, "B": 2.225}

    def time(_: np.random.Generator, at: At) -> float:
        return float(steps[at.step]) * (slow[at.kind] if (at.copy, at.rank) == (0, 0) else 1.0)

    return Made(one_f_one_b(4, 32), copies=4, steps=4, seed=seed,
                base={"F": 217e-3, "B": 434e-3}, noise=0.005, time=time)  # fmt: skip


def interleaved(seed: int = 0) -> Made:
    """8 ranks with two chunks each, 16 microbatches, one copy; zeros of clocks are the ranks' own.

    The last stage takes 1.1 times as long, for the loss.
    """
    rows = db.make("interleaved-1f1b", ranks=8, microbatches=16, chunks=2).rows()
    rng = np.random.default_rng(seed)
    return Made(rows, copies=1, steps=6, seed=seed, base={"F": 30e-3, "B": 35e-3}, noise=0.02,
                time=lambda _, at: 1.3 if at.stage == 15 else 1.0,
                latency=lambda *_: 0.65e-3, arrivals=False,
                offset=tuple(rng.uniform(-2e-3, 2e-3, 8)))  # fmt: skip
