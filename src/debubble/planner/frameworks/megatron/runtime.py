"""Habits of Megatron-LM: receives just before use, drops an output once it is sent."""

from debubble.planner.frameworks.habits import Habits

MEGATRON = Habits("megatron", "Megatron-LM", vocabulary_multiple=128, narrow_inputs=True, expert_launch=4.5e-3)
