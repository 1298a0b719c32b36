"""Pipelines in a training loop of one's own, and what their stages cost.

>>> import debubble.torch as dt  # doctest: +SKIP
>>> pipe = dt.Pipeline("best.csv", stages, loss_fn)  # doctest: +SKIP
>>> loss = pipe.step(x, target=y)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib.util

from debubble.core.errors import DebubbleError

if importlib.util.find_spec("torch") is None:
    raise DebubbleError("debubble.torch needs PyTorch; pip install 'debubble[torch]'")

from debubble.torch.errors import RunError
from debubble.torch.losses import add_loss
from debubble.torch.pipeline import Pipeline
from debubble.torch.profile import Profile, profile
from debubble.torch.scaler import GradScaler
from debubble.torch.split import split
from debubble.torch.tune import Tuned, tune

__all__ = [
    "GradScaler", "Pipeline", "Profile", "RunError", "Tuned", "add_loss", "profile", "split",
    "tune",
]  # fmt: skip
