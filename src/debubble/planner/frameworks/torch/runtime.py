"""Habits of PyTorch 2.13: its pipelines (``torch.distributed.pipelining``) and FSDP2.

Newer versions allocate receive buffers just in time (pytorch#193872).
"""

from debubble.planner.frameworks.habits import Habits

EVERY_SECOND = "op"
"""torchtitan's selective recompute: outputs of attention and of every second product stay."""

TORCH = Habits(
    "torch", "PyTorch 2.13 with FSDP2", engine="torch", fsdp=True, receive_buffers=True,
    sent_until="step", gathered_inputs=True, portable_attention=True, sends_copies=True,
    selective=(EVERY_SECOND,),
)  # fmt: skip
