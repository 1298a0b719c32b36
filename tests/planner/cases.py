"""Models and cases that tests of rules, flags and degrees share."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.frameworks.habits import Habits
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import GPUS, Gpu
from debubble.planner.memory import activations
from debubble.planner.model.mixers import Attention, LatentAttention
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model
from debubble.planner.plannable import first_cut
from debubble.planner.request import Fixed, PlanRequest
from debubble.planner.search.evaluate import Evaluated, finished, timed
from debubble.planner.search.groups import groups

PLAIN = Habits("plain", "software without habits")


@dataclass(frozen=True)
class OneGpu:
    """What degrees look at in a GPU."""

    node: int = 8
    maker: str = "NVIDIA"
    sixteen: str = "bf16"


@dataclass(frozen=True)
class Gpus:
    """A cluster of which only the number of GPUs counts."""

    gpus: int
    gpu: OneGpu = OneGpu()


def dense(layers: int = 32, kv_heads: int = 8, **fields: Any) -> Model:
    """Llama-3.1-8B's shape."""
    layer = Layer(Attention(32, kv_heads, 128), Mlp(14336))
    return Model("dense", 4096, (layer,) * layers, 128256, **fields)


def mixture(layers: int = 24, **fields: Any) -> Model:
    """Mixtral's shape, with fewer layers."""
    layer = Layer(Attention(32, 8, 128), Experts(8, 2, 14336))
    return Model("mixture", 4096, (layer,) * layers, 32000, **fields)


def latent(layers: int = 61) -> Model:
    """DeepSeek-V3: three dense layers, then experts; one layer of multi-token prediction."""
    attention = LatentAttention(128, 1536, 512, 128, 64, 128)
    experts = Experts(256, 8, 2048, shared_width=2048, router_bias=True)
    first = (Layer(attention, Mlp(18432)),) * 3
    return Model("latent", 7168, first + (Layer(attention, experts),) * (layers - 3), 129280, mtp=1)


def case(
    model: Model,
    schedule: str = "1f1b",
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    dp: int = 1,
    pp: int = 1,
    chunks: int = 1,
    b: int = 1,
    m: int = 8,
    recompute: str = "none",
    zero: int = 1,
    layers: tuple[int, ...] = (),
    mtp_stage: int | None = None,
    **training: Any,
) -> Case:
    """A case whose batch and GPUs fit its degrees; `training` changes what is trained."""
    degrees = Degrees(tp, cp, ep, dp, pp, chunks)
    cut = layers or first_cut(len(model.layers), degrees.stages, model.mtp)
    own = Candidate(degrees, b, m, schedule, cut, recompute, zero, mtp_stage=mtp_stage)
    asked = {"batch": dp * b * m, "sequence": 8192} | training
    return case_of(model, Training(**asked), own)


def case_of(
    model: Model, training: Training, candidate: Candidate, gpu: Gpu = GPUS["h100"]
) -> Case:
    """A case on as many GPUs as its degrees need."""
    return Case(model, Cluster(gpu, candidate.degrees.gpus), training, candidate)


def changed(one: Case, changes: Mapping[str, Any]) -> Case:
    """A case with other values: of degrees, candidate, training, ``gpus``, or the model.

    Layers are cut anew where stages change.
    """
    parts: dict[str, dict[str, Any]] = {name: {} for name in set(OWNERS.values())}
    for name, value in changes.items():
        parts[OWNERS[name]][name] = value
    degrees = replace(one.degrees, **parts["degrees"])
    model = replace(one.model, **parts["model"])
    same = degrees.stages == one.degrees.stages
    cut = one.candidate.layers if same else first_cut(len(model.layers), degrees.stages, model.mtp)
    own = replace(one.candidate, **{"degrees": degrees, "layers": cut, **parts["candidate"]})
    training = replace(one.training, **parts["training"])
    cluster = replace(one.cluster, **parts["cluster"])
    return replace(one, model=model, cluster=cluster, training=training, candidate=own)


OWNERS = {
    **{spec.name: "training" for spec in fields(Training)},
    **{spec.name: "candidate" for spec in fields(Candidate)},
    **{spec.name: "degrees" for spec in fields(Degrees)},
    "mtp": "model", "tied": "model", "gpus": "cluster",
}  # fmt: skip


SEARCHES = [(dense(30), 64, 128), (dense(32, 4), 96, 96), (mixture(), 64, 64), (latent(), 256, 512)]


def sampled(framework: str, each: int) -> list[Case]:
    """Some plans of every search for a framework, the same ones every time."""
    some, found = random.Random(7), []
    for model, gpus, batch in SEARCHES:
        cluster: Any = Gpus(gpus)
        training = Training(batch, 4096)
        held = list(groups(PlanRequest(model, cluster, training, fixed=Fixed(framework=framework))))
        for group in some.sample(held, min(each, len(held))):
            one = some.choice(list(group.candidates()))
            found.append(case_of(model, training, one))
    return found


@contextmanager
def no_more_gpus() -> Iterator[None]:
    """Leave out of answers what more GPUs bring, which takes a search of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("one_more_node", "enough_gpus"):
            patch.setattr(f"debubble.planner.answer.plan.{name}", lambda *_: None)
        yield


def evaluate(asked: PlanRequest, candidate: Candidate) -> Evaluated:
    """All that is said of one candidate."""
    return finished(timed(asked, candidate)[0])


def mtp_parameters(model: Model) -> int:
    """Return the parameters of multi-token prediction, embedding and head left out."""
    one = model.layer_parameters(model.layers[-1]) + 2 * model.hidden**2
    return model.mtp * (one + 3 * model.norm_parameters)


def layer_activation(
    model: Model, layer: Layer, training: Training, candidate: Candidate
) -> activations.Activation:
    """Return the bytes that one layer stores of one microbatch on one GPU."""
    modules = activations.recompute_modules(case_of(model, training, candidate))
    seen = candidate.without_order(modules=modules, replicas=False)
    return activations.layer_activation(model, layer, training, seen)
