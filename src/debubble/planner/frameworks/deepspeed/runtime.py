"""Habits of Megatron-DeepSpeed."""

from debubble.planner.frameworks.habits import DEEPSPEED

__all__ = ["DEEPSPEED"]
