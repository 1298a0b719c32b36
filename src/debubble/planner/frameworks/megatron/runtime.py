"""Habits of Megatron-LM: receives just before use, drops an output once it is sent."""

from debubble.planner.frameworks.habits import Habits

MEGATRON = Habits(
    "megatron", "Megatron-LM", vocabulary_multiple=128, narrow_inputs=True, sends_copies=True,
    expert_launch=4.5e-3,
)  # fmt: skip
"""Its host takes 4.5 ms to start a layer with experts: steps of one sequence per microbatch on
Megatron-Bridge (Qwen3-30B on 8 B200: 14.5 s, 64 microbatches of 48 layers)."""
