"""Functions of a torchtitan release, run from its wheel without all that it depends on."""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
import types
from pathlib import Path
from typing import Any

from torch import nn

from tests import wheels

VERSION = "0.3.0"


def fetch(folder: Path) -> Path:
    """The wheel's content in a folder, downloaded when it is not there."""
    return wheels.fetch(folder, "torchtitan", VERSION)


@functools.cache
def load(content: Path) -> tuple[types.ModuleType, types.ModuleType]:
    """The modules ``config.configs`` and ``distributed.pipeline_parallel``.

    The others, of which the second imports types and a logger, are stood in for.
    """
    for name in ("torchtitan", *(f"torchtitan.{name}" for name in PACKAGES)):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []  # type: ignore[attr-defined]
    configs = run(content, "torchtitan.config.configs")
    for name, values in STANDING_IN.items():
        module = types.ModuleType(f"torchtitan.{name}")
        vars(module).update(values)
        sys.modules[module.__name__] = module
    vars(sys.modules["torchtitan.config"]).update(vars(configs))
    sys.modules["torchtitan.distributed"].ParallelDims = Anything  # type: ignore[attr-defined]
    return configs, run(content, "torchtitan.distributed.pipeline_parallel")


class Anything:
    """A type that only annotations name."""

    Config: Any = None


PACKAGES = ("components", "config", "distributed", "protocols", "tools")
STANDING_IN: dict[str, dict[str, Any]] = {
    "components.loss": {"LossFunction": Anything},
    "distributed.activation_checkpoint": {"ActivationCheckpointingConfig": Anything},
    "protocols.model": {"BaseModel": Anything},
    "protocols.model_spec": {"ParallelizeFunction": Anything},
    "protocols.module": {"ModuleDict": nn.ModuleDict, "ModuleList": nn.ModuleList},
    "tools.logging": {"logger": logging.getLogger("torchtitan")},
}


def run(content: Path, name: str) -> types.ModuleType:
    path = content.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, module)
    return module
