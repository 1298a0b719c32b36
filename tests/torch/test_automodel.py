"""NeMo Automodel's own functions cut a model by our flags and train it by our CSV."""

from __future__ import annotations

import importlib
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs schedules on PyTorch; install torch")

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import debubble as db
from debubble import Schedule
from debubble.interchange.launchers import automodel
from debubble.interchange.layouts import AUTOMODEL
from debubble.interchange.torch_csv import to_csv
from tests import wheels
from tests.torch.world import in_ranks

VERSION = "0.7.0"
PACKAGES = ("", ".components", ".components.distributed", ".components.distributed.pipelining")
LAYERS, WIDTH, WORDS, TOKENS = 8, 6, 11, 5
RANKS, MICROBATCHES = 2, 6
NAMES = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "v-min", "dualpipe-v")


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed_tokens(x) if self.embed_tokens is not None else x
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return self.norm(x) if self.norm is not None else x


class Decoder(nn.Module):
    """A model as it cuts them: parts that a stage lacks are None."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.model = Inner()
        self.lm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.model(x)
        return self.lm_head(x) if self.lm_head is not None else x


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")


def load(wheel: Path) -> types.ModuleType:
    """Its functions for pipelines; its packages import much else, and are stood in for."""
    for name in PACKAGES:
        package = types.ModuleType(f"nemo_automodel{name}")
        package.__path__ = [str(wheel.joinpath("nemo_automodel", *name[1:].split(".")))]
        sys.modules[package.__name__] = package
    return importlib.import_module(f"nemo_automodel{PACKAGES[-1]}.functional")


def settings_of(schedule: Schedule, path: Path) -> dict[str, str]:
    lines = automodel(schedule, str(path))
    words = [shlex.split(line, comments=True) for line in lines]
    return {word[0].rpartition(".")[2]: word[1] for word in words if word}


def trained(rank: int, wheel: Path, path: Path, schedules: list[Schedule]) -> dict[str, bool]:
    """Whether gradients are those of the whole model, by schedule and what weights do."""
    theirs = load(wheel)
    mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("dp", "pp"))
    text = torch.randint(
        WORDS, (MICROBATCHES, TOKENS + 1), generator=torch.Generator().manual_seed(5)
    )
    x, y = text[:, :-1], text[:, 1:]
    whole = Decoder().double()
    loss_fn(whole(x), y).backward()
    wanted = dict(whole.named_parameters())

    def same(schedule: Schedule, reshard: bool | None) -> bool:
        settings = settings_of(schedule, path / f"{schedule.name}.csv")
        assert int(settings["pp_size"]) == RANKS
        cut = [LAYERS // schedule.stages] * schedule.stages
        stages, parts = theirs.split_model_into_stages(
            Decoder().double(), mesh["pp"], "pp", settings["pp_schedule"], torch.device("cpu"),
            AUTOMODEL.of(cut), patch_inner_model=False, patch_causal_lm_model=False,
        )  # fmt: skip
        for part in parts if reshard is not None else ():
            for layer in (*part.model.layers.values(), part):
                fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=reshard)
        runtime = theirs.build_pipeline_schedule(
            settings["pp_schedule_csv"], settings["pp_schedule"],
            int(settings["pp_microbatch_size"]), int(settings["local_batch_size"]), stages, loss_fn,
        )  # fmt: skip
        numbers = [stage.stage_index for stage in stages]
        assert sorted(numbers) == sorted(schedule.placement.stages_on(rank))
        last = schedule.stages - 1 in numbers
        losses: list[Tensor] | None = [] if last else None
        runtime.step(*[x] * (0 in numbers), **{"target": y} if last else {}, losses=losses)
        return all(
            each.grad is not None and torch.allclose(whole_of(each.grad), wanted[name].grad)
            for part in parts for name, each in part.named_parameters()
        )  # fmt: skip

    found = {schedule.name: same(schedule, None) for schedule in schedules}
    in_v = schedules[NAMES.index("zb-v")]
    return found | {f"zb-v, reshard {one}": same(in_v, one) for one in (False, True)}


def whole_of(grad: Any) -> Tensor:
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


@pytest.mark.slow
@pytest.mark.processes
def test_our_flags_and_files_in_its_functions(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    wheel = wheels.fetch(wheels.folder_of(request, "automodel"), "nemo-automodel", VERSION)
    schedules = [db.make(name, ranks=RANKS, microbatches=MICROBATCHES) for name in NAMES]
    for schedule in schedules:
        (tmp_path / f"{schedule.name}.csv").write_text(to_csv(schedule))
    found = in_ranks(RANKS, lambda rank: trained(rank, wheel, tmp_path, schedules))
    right = dict.fromkeys((*NAMES, "zb-v, reshard False"), True)
    # The comment beside the flag says why it is there.
    assert found == [right | {"zb-v, reshard True": False}] * RANKS


def test_a_v_comes_with_the_name_that_places_it() -> None:
    for name in NAMES:
        schedule = db.make(name, ranks=RANKS, microbatches=MICROBATCHES)
        settings = settings_of(schedule, Path("x.csv"))
        in_v = schedule.placement.name == "V"
        assert (settings["pp_schedule"] == "ZBVZeroBubble") == in_v
        assert ("reshard_after_forward" in settings) == (name not in ("1f1b", "interleaved-1f1b"))
