"""torchtitan's own functions run our files with our flags, and our function in place of theirs."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs schedules on PyTorch; install torch")

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import debubble as db
from debubble import Placement, Schedule
from debubble.core.errors import FormatError, ParameterError
from debubble.interchange.launchers import torchtitan
from debubble.interchange.layouts import TORCHTITAN, cut_text
from debubble.interchange.torch_csv import to_csv
from debubble.torch.models.modules import bare_name
from debubble.torch.titan import pipelining_fn
from tests import wheels
from tests.torch import torchtitan_wheel
from tests.torch.world import in_ranks

LAYERS, WIDTH, WORDS, ROWS, TOKENS = 8, 8, 13, 2, 5
RANKS, MICROBATCHES = 2, 6


@pytest.fixture(scope="module")
def wheel(request: pytest.FixtureRequest) -> Path:
    return torchtitan_wheel.fetch(wheels.folder_of(request, "torchtitan"))


class Decoder(nn.Module):
    """A model as torchtitan cuts it: parts that a stage lacks are None."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tok_embeddings(x) if self.tok_embeddings is not None else x
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        x = self.norm(x) if self.norm is not None else x
        return self.lm_head(x) if self.lm_head is not None else x


def loss_fn(output: Tensor, target: Tensor, tokens: float = 1.0) -> tuple[Tensor, dict[str, Any]]:
    """Their losses: a sum over tokens, and what is logged."""
    total = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    return total / tokens, {}


def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    text = torch.randint(WORDS, (MICROBATCHES * ROWS, TOKENS + 1), generator=source)
    return text[:, :-1], text[:, 1:]


def job(theirs: tuple[Any, Any], flags: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What the trainer hands to the function that pipelines a model."""
    configs, _ = theirs
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("pp",))
    own = {"parallelism": configs.ParallelismConfig(), "training": configs.TrainingConfig()}
    for flag, value in flags.items():
        section, _, name = flag.partition(".")
        kind = type(getattr(own[section], name))
        own[section] = dataclasses.replace(own[section], **{name: kind(value)})
    own["training"] = dataclasses.replace(
        own["training"], local_batch_size=own["training"].local_batch_size * ROWS
    )
    own["parallelism"] = dataclasses.replace(
        own["parallelism"], pipeline_parallel_microbatch_size=ROWS, **changes
    )
    return own | {
        "parallel_dims": SimpleNamespace(pp=RANKS, get_mesh=lambda *_: mesh),
        "compile_config": None,
        "ac_config": None,
        "dump_folder": "",
        "device": torch.device("cpu"),
        "model_config": SimpleNamespace(layers=[None] * LAYERS),
        "parallelize_fn": lambda model, **_: model.double(),
        "loss_fn": loss_fn,
    }


def flags_of(schedule: Schedule, path: Path) -> dict[str, str]:
    lines = [line for line in torchtitan(schedule, str(path)) if not line.startswith("#")]
    return dict(line.removeprefix("--").split("=", 1) for line in lines)


def difference(parts: list[nn.Module], tokens: float) -> str:
    """What gradients of this rank's parts differ from those of the whole model."""
    x, y = data()
    whole = Decoder().double()
    loss_fn(whole(x), y, tokens)[0].backward()
    wanted = dict(whole.named_parameters())
    for part in parts:
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None
            if not torch.allclose(parameter.grad, wanted[name].grad, rtol=0, atol=1e-12):
                return name
    return ""


def with_their_flags(rank: int, wheel: Path, path: Path, schedules: list[Schedule]) -> list[str]:
    theirs = torchtitan_wheel.load(wheel)
    found = []
    for schedule in schedules:
        own = job(theirs, flags_of(schedule, path / f"{schedule.name}.csv"))
        runtime, parts, first, last = theirs[1].pipeline_llm(Decoder(), **own)
        x, y = data()
        losses: list[Tensor] | None = [] if last else None
        runtime.step(*[x] * first, **{"target": y} if last else {}, losses=losses)
        found.append(difference(parts, 1.0))
    return found


def test_our_flags_and_files_in_their_functions(wheel: Path, tmp_path: Path) -> None:
    names = ["1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "v-min", "dualpipe-v"]
    schedules = [db.make(name, ranks=RANKS, microbatches=MICROBATCHES) for name in names]
    for schedule in schedules:
        (tmp_path / f"{schedule.name}.csv").write_text(to_csv(schedule))
    found = in_ranks(RANKS, lambda rank: with_their_flags(rank, wheel, tmp_path, schedules))
    assert found == [[""] * len(names)] * RANKS


WAVE = db.make("hanayo", ranks=RANKS, microbatches=MICROBATCHES, chunks=4)
BLOCKS = Schedule.from_text(
    [[f"{s}F{u}" for u in (1, 0, 2, 4, 3, 5) for s in (0, 1)]
     + [f"{s}B{u}" for u in (0, 1, 2, 4, 3, 5) for s in (1, 0)],
     [f"{s}F{u}" for u in (1, 0, 2, 4, 3, 5) for s in (2, 3)]
     + [f"{s}B{u}" for u in (0, 1, 2, 4, 3, 5) for s in (3, 2)]],
    Placement.block(RANKS, 2), MICROBATCHES, "blocks",
)  # fmt: skip
"""Neighbours share a rank, and losses come out of order."""


def with_our_function(rank: int, wheel: Path, cases: list[tuple[Any, Any, Any]]) -> list[str]:
    theirs = torchtitan_wheel.load(wheel)
    found = []
    x, y = data()
    for schedule, cut, parts in cases:
        flags = {"training.local_batch_size": MICROBATCHES}
        own = job(theirs, flags, module_fqns_per_model_part=parts)
        runtime, modules, first, last = pipelining_fn(schedule, cut)(Decoder(), **own)
        x_parts, y_parts = x.split(ROWS), y.split(ROWS)
        losses: list[Tensor] | None = [] if last else None
        call: dict[str, Any] = {
            "arg_mbs": [(part,) for part in x_parts] if first else None,
            "kwarg_mbs": [{}] * MICROBATCHES,
            "target_mbs": list(y_parts) if last else None,
            "losses": losses,
            "return_outputs": False,
        }
        runtime.step(**call, loss_kwargs={"tokens": 7.0})
        text = difference(modules, 7.0)
        if last:
            whole = Decoder().double()
            wanted = [loss_fn(whole(a), b, 7.0)[0] for a, b in zip(x_parts, y_parts, strict=True)]
            assert losses is not None
            assert torch.allclose(torch.stack(losses), torch.stack(wanted))
        runtime.eval(**call)
        found.append(text)
    return found


def test_our_function_places_any_way(wheel: Path, tmp_path: Path) -> None:
    file = tmp_path / "best.modules.json"
    file.write_text(cut_text(BLOCKS.placement, [2, 3, 1, 2]))
    names = TORCHTITAN.of([1, 2, 2, 3])
    path = tmp_path / "blocks.json"
    BLOCKS.save(path)
    cases = [
        (WAVE, None, None),
        (path, file, None),
        (BLOCKS, [1, 2, 2, 3], None),
        (BLOCKS, [0, 4, 4, 0], None),
        (BLOCKS, names, None),
        (BLOCKS, None, names),
        (db.make("zb-v", ranks=RANKS, microbatches=MICROBATCHES), None, None),
        (db.make("dualpipe-v", ranks=RANKS, microbatches=MICROBATCHES), None, None),
    ]
    assert (
        in_ranks(RANKS, lambda rank: with_our_function(rank, wheel, cases))
        == [[""] * len(cases)] * RANKS
    )


def parallelized(how: str, model: nn.Module) -> nn.Module:
    """A part of the model with what torchtitan wraps it in."""
    model = model.double()
    if how == "checkpointed":
        for name, layer in model.layers.items():
            model.layers[name] = checkpoint_wrapper(layer)
    if how == "sharded":
        mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("pp", "dp"))["dp"]
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model


def wrapped(rank: int, wheel: Path, how: str) -> list[str]:
    theirs = torchtitan_wheel.load(wheel)
    own = job(theirs, {"training.local_batch_size": MICROBATCHES})
    own["parallelize_fn"] = lambda model, **_: parallelized(how, model)
    order = db.make("zb-v", ranks=RANKS, microbatches=MICROBATCHES)
    runtime, modules, first, last = pipelining_fn(order)(Decoder(), **own)
    x, y = data()

    def step() -> None:
        for part in modules:
            part.zero_grad()
        runtime.step(*[x] * first, **{"target": y} if last else {}, losses=[] if last else None)

    step()
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    for part in modules:
        for layer in part.layers.values():
            getattr(layer, "_checkpoint_wrapped_module", layer).register_forward_pre_hook(count)
    step()
    whole = Decoder().double()
    loss_fn(whole(x), y)[0].backward()
    wrong = []
    for name, weight in (pair for part in modules for pair in part.named_parameters()):
        gradient = weight.grad
        if gradient is not None and how == "sharded":
            gradient = gradient.full_tensor()
        wanted = whole.get_parameter(bare_name(name)).grad
        if gradient is None or not torch.allclose(gradient, wanted, rtol=0, atol=1e-12):
            wrong.append(name)
    most = 2 if how == "checkpointed" else 1
    layers = sum(len(part.layers) for part in modules)
    return wrong if forwards <= most * layers * MICROBATCHES else [*wrong, f"{forwards} forwards"]


@pytest.mark.parametrize("how", ["plain", "checkpointed", "sharded"])
def test_backwards_that_pytorch_cannot_split_stay_whole(wheel: Path, how: str) -> None:
    found = in_ranks(RANKS, functools.partial(wrapped, wheel=wheel, how=how))
    assert found == [[]] * RANKS


def refusal(rank: int, wheel: Path, schedule: Schedule, parts: Any) -> str:
    theirs = torchtitan_wheel.load(wheel)
    own = job(theirs, {"training.local_batch_size": 4}, module_fqns_per_model_part=parts)
    with pytest.raises(ParameterError) as caught:
        pipelining_fn(schedule)(Decoder(), **own)
    return str(caught.value)


def test_jobs_that_do_not_fit_are_refused(wheel: Path) -> None:
    four = db.make("1f1b", ranks=RANKS, microbatches=4)
    wide = db.make("1f1b", ranks=3, microbatches=4)
    for schedule, parts, text in (
        (WAVE, None, f"'hanayo' has {MICROBATCHES} microbatches, and the job has 4"),
        (wide, None, "'1f1b' has 3 ranks, and the job has 2"),
        (four, [["a"]], "the model is cut into 1 parts; '1f1b' has 2 stages"),
    ):
        work = functools.partial(refusal, wheel=wheel, schedule=schedule, parts=parts)
        assert in_ranks(RANKS, work) == [text] * RANKS


def test_files_and_cuts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="2 copies of the model"):
        pipelining_fn(db.make("dualpipe", ranks=2, microbatches=4))
    with pytest.raises(ParameterError, match="it has 2 stages; give the layers of each of its 8"):
        pipelining_fn(WAVE, [1, 2])
    with pytest.raises(FormatError, match=r"debubble optimize --layers 32 -o x"):
        pipelining_fn(WAVE, tmp_path / "nothing.json")
    for text in ("[]", '{"torchtitan": 3}', '{"torchtitan": [3]}', "[" * 100_000):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(FormatError, match=r"x.json: no modules of torchtitan"):
            pipelining_fn(WAVE, tmp_path / "x.json")


def test_shares_of_a_model_are_copies(wheel: Path) -> None:
    """Their split copies the model, so that ours may run on it after theirs."""
    model = Decoder()
    before = copy.deepcopy(model.state_dict())
    part = torchtitan_wheel.load(wheel)[1]._split_module(model, ["tok_embeddings", "layers.0"])
    assert part.lm_head is None
    assert before.keys() == model.state_dict().keys()
