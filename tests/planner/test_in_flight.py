"""Peaks from counted moments against those of memory over time."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import debubble as db
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.in_flight import fullest_moments, peak_memory
from debubble.planner.memory import memory_of
from debubble.planner.model_files import read_model


@dataclass(frozen=True)
class Gpu:
    memory: float = 80e9


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed", "torch", "debubble"])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        ("1f1b", 1), ("gpipe", 1), ("zb-h2", 1), ("interleaved-1f1b", 4), ("zb-v", 2),
        ("dualpipe-v", 2), ("chimera", 1), ("pipedream-2bw", 1), ("interleaved-zb", 2),
    ],
)  # fmt: skip
def test_counted_peaks_are_those_over_time(schedule, chunks, runtime):
    options = {"chunks": chunks} if schedule.startswith("interleaved") else {}
    order = db.make(schedule, ranks=4, microbatches=8, **options)
    timeline = db.simulate(order, db.Costs(F=1, I=1.2, W=0.9, p2p=0.05))
    fullest = fullest_moments(timeline, runtime)
    assert fullest is not None
    assert fullest.counts.shape[1] < 60
    for name in ("deepseek-v2-lite", "llama-3.2-1b"):
        model = read_model(name)
        stages = 4 * chunks
        base, rest = divmod(len(model.layers), stages)
        layers = tuple(base + (stage >= stages - rest) for stage in range(stages))
        for recompute in ("none", "selective", "full"):
            degrees = Degrees(tp=2, dp=4, ep=2, pp=4, chunks=chunks)
            plan = Candidate(degrees, 2, 8, schedule, layers, recompute=recompute)
            training = Training(64, 1024, runtime=runtime)
            expected = [one.peak for one in memory_of(model, Gpu(), training, plan, timeline)]
            found = peak_memory(model, training, plan, fullest)
            np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["seq1f1b", "vocab-1", "pipeoffload-full"])
def test_what_cannot_be_counted_without_a_model(schedule):
    order = db.make(schedule, ranks=4, microbatches=8)
    timeline = db.simulate(order)
    assert fullest_moments(timeline, "megatron") is None


def test_the_model_changes_bytes_only():
    order = db.make("1f1b", ranks=4, microbatches=32)
    fullest = fullest_moments(db.simulate(order, db.Costs(F=1, B=2)), "megatron")
    assert fullest is not None
    # Some are fullest in activations, others in logits or buffers.
    assert fullest.counts.shape[1] <= 4
    model, training = read_model("llama-3.1-8b"), Training(64, 8192)
    plan = Candidate(Degrees(pp=4), 1, 32, "1f1b", (8, 8, 8, 8))
    small = peak_memory(model, training, plan, fullest)
    large = peak_memory(model, training, replace(plan, microbatch_size=2), fullest)
    assert np.all(large > small)
