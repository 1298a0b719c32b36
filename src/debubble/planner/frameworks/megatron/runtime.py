"""Habits of Megatron-LM: receives just before use, drops an output once it is sent."""

from debubble.planner.frameworks.habits import Habits

MEGATRON = Habits(
    "megatron", "Megatron-LM", vocabulary_multiple=128, narrow_inputs=True, sends_copies=True,
    expert_launch=4.5e-3, memory_error=0.1,
)  # fmt: skip
"""14 measured peaks (NeMo, Zero Bubble) are below the predicted ones. The error is not, because a
plan with a predicted peak of 81.2 of 85.0 GB ran out of memory in 30 to 60 % of runs
(Megatron-Bridge#3107). The host takes 4.5 ms to start a layer with experts: steps of one sequence
per microbatch on Megatron-Bridge (Qwen3-30B on 8 B200: 14.5 s, 64 microbatches of 48 layers)."""
