"""DeepSpeed's pipeline engines on CPU, from its source and the little that its import needs."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import wheels

VERSION = "0.19.8"
NEEDS = {"hjson": "3.1.0", "py-cpuinfo": "9.0.0", "einops": "0.8.2"}


def fetch(folder: Path) -> list[str]:
    """The folders that Python imports it from, downloaded when they are not there."""
    packages = {"deepspeed": VERSION, **NEEDS}
    here = ("--no-build-isolation",)  # its source says what it needs by being run
    return [str(wheels.fetch(folder, name, version, *here)) for name, version in packages.items()]


def load(folders: list[str], rank: int, ranks: int) -> Any:
    """The package, on the gloo group of this process; it would compile an operator of its own."""
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE=str(ranks), MASTER_ADDR="localhost", MASTER_PORT="0")
    sys.path.extend(folders)
    warnings.simplefilter("ignore")
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False)
    return deepspeed


def engine_of(deepspeed: Any, module: Callable[..., Any], layers: list[Any], **sizes: int) -> Any:
    """Its engine for a pipeline of these layers; `sizes` are stages, microbatches and rows."""
    import torch

    with contextlib.redirect_stdout(io.StringIO()):
        net = module(
            layers=layers, num_stages=sizes["stages"], loss_fn=torch.nn.MSELoss(),
            partition_method="uniform",
        )  # fmt: skip
        rows, microbatches = sizes["rows"], sizes["microbatches"]
        config = {
            "train_batch_size": rows * microbatches,
            "train_micro_batch_size_per_gpu": rows,
            "gradient_accumulation_steps": microbatches,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": None,
        }
        parameters = [each for each in net.parameters() if each.requires_grad]
        return deepspeed.initialize(
            model=net, model_parameters=parameters, config=config, dist_init_required=False
        )[0]
