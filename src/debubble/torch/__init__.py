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

from debubble.torch.data.batch import add_loss
from debubble.torch.errors import RunError
from debubble.torch.measure.profile import Profile, profile
from debubble.torch.measure.tune import Tuned, tune
from debubble.torch.models.split import split
from debubble.torch.pipeline import Pipeline
from debubble.torch.scaler import GradScaler

__all__ = [
    "GradScaler", "Pipeline", "Profile", "RunError", "Tuned", "add_loss", "profile", "split",
    "tune",
]  # fmt: skip
