"""Buffers of transfers against counts written out here."""

import numpy as np

import debubble as db
from debubble.planner.frameworks.deepspeed.runtime import DEEPSPEED
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.memory._moments_kernel import Changes, Rest
from debubble.planner.memory.buffers import tensors_of
from debubble.planner.memory.memory_events import moments_of
from tests.planner.memory.over_time import over_time


def held(schedule, rank, runtime, costs=None):
    timeline = db.simulate(schedule, costs or db.Costs(F=1, B=2))
    tensors = tensors_of(schedule, runtime)
    nothing = np.zeros(tensors.comes.shape)
    changes = Changes(*[nothing] * 4, *tensors, 1.0)
    peaks = moments_of(timeline, changes, Rest(np.zeros(schedule.ranks), 0.0, 0.0))
    found = list(over_time(timeline, changes))[rank].tensors
    assert peaks.total[rank] == found.max()
    assert peaks.moment[rank] == np.argmax(found)
    assert peaks.left[rank] == found[-1]
    assert found.min() >= 0
    return found


def test_pytorch_keeps_a_buffer_for_every_microbatch_and_stage():
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    first = held(schedule, 0, TORCH)
    # 8 gradients come to the first rank; what it sent stays.
    assert first[0] == 8
    assert first[-1] == 8 + 8
    inner = held(schedule, 1, TORCH)
    # Of 8 inputs and 8 gradients, the input that is in use is an activation.
    assert inner[0] == 8 + 8 - 1
    assert inner[-1] == 16 + 16
    last = held(schedule, 3, TORCH)
    assert last[0] == 8 - 1
    assert last[-1] == 8 + 8


def test_pytorchs_buffers_of_neighbours_on_one_rank_are_there_too():
    schedule = db.make("zb-v", ranks=2, microbatches=4)
    last = held(schedule, 1, TORCH, db.Costs(F=1, I=1, W=1))
    # Stages 1 and 2, an input and a gradient each; sends to stages 0 and 3 alone.
    assert last[-1] == 4 * 4 + 2 * 4


def test_a_receive_buffer_example_of_users():
    # 4096 tokens of 8192 channels in bf16 are 64 MiB; 64 microbatches, two chunks: 16 GiB.
    schedule = db.make("interleaved-1f1b", ranks=4, microbatches=64, chunks=2)
    inner = held(schedule, 1, TORCH)
    assert (inner[0] + 1) * 4096 * 8192 * 2 == 16 << 30


def test_megatron_holds_what_has_just_come_or_goes():
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    for rank in range(4):
        found = held(schedule, rank, MEGATRON)
        assert found.max() <= 3
        assert found.min() == 0
    # The last rank ends with a gradient on its way.
    assert found[-1] == 1


def test_deepspeed_keeps_outputs_until_their_backward():
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    # Each of the first rank's four microbatches in flight, and the gradient in use.
    assert held(schedule, 0, DEEPSPEED).max() == 4 + 1
    assert held(schedule, 3, DEEPSPEED).max() <= 1
