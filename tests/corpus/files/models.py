"""Models that fail."""

import sys

import torch
from torch import nn


def raises(stages):
    raise KeyError("no")


def noarg():
    return 1


def exits(stages):
    sys.exit(0)


def data(stages):
    def data(number):
        raise OSError("data")

    return [nn.Linear(4, 4) for _ in range(stages)], nn.functional.mse_loss, data


def shapes(stages):
    ones = torch.ones(2, 4)
    layers = [nn.Linear(4, 5) for _ in range(stages)]
    return layers, nn.functional.mse_loss, lambda _: (ones, ones)
