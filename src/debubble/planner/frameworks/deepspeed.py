"""Habits of DeepSpeed, which has no flags here: published steps ran on it."""

from debubble.planner.frameworks.habits import Habits

DEEPSPEED = Habits(
    "deepspeed", "DeepSpeed", vocabulary_multiple=128, bucket=5e8, sent_until="made",
    keeps_outputs=True,
)  # fmt: skip
