"""Habits of Megatron-DeepSpeed."""

from debubble.planner.frameworks.habits import Habits

DEEPSPEED = Habits(
    "deepspeed", "DeepSpeed", vocabulary_multiple=128, bucket=5e8, sent_until="made",
    keeps_outputs=True, hides_tensors=False,
)  # fmt: skip
