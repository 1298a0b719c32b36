"""Habits of Megatron-LM: receives just before use, drops an output once it is sent."""

from debubble.planner.frameworks.habits import Habits

MEGATRON = Habits(
    "megatron", "Megatron-LM", vocabulary_multiple=128, narrow_inputs=True, memory_error=0.1
)
"""14 measured peaks (NeMo, Zero Bubble) are below the predicted ones. The error is not, because a
plan with a predicted peak of 81.2 of 85.0 GB ran out of memory in 30 to 60 % of runs
(Megatron-Bridge#3107)."""
