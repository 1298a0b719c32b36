"""A model of one's own for ``debubble run``: a classifier of noisy waves.

debubble run zb-v -p 4 -m 8 --model examples/model.py:build
"""

import torch
from torch import nn

WIDTH, CLASSES, ROWS, SAMPLES = 64, 5, 8, 32


class Residual(nn.Module):
    """A layer and its input."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        """The layer's output on top of its input."""
        return x + self.inner(x)


def build(stages):
    """Modules of the stages, the mean loss, and the data of a microbatch."""
    modules = [nn.Sequential(Residual(), Residual()) for _ in range(stages)]
    modules[0].insert(0, nn.Linear(SAMPLES, WIDTH))
    modules[-1].append(nn.Linear(WIDTH, CLASSES))

    def data(microbatch):
        source = torch.Generator().manual_seed(microbatch)
        target = torch.randint(CLASSES, (ROWS,), generator=source)
        waves = torch.sin(torch.arange(SAMPLES) * (target[:, None] + 1) / 5)
        return waves + torch.randn(ROWS, SAMPLES, generator=source) / 4, target

    return modules, nn.functional.cross_entropy, data
