"""Published configurations that several tests of the planner use."""

from __future__ import annotations

from typing import NamedTuple

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.measured_run import spread
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.cost.step import step_time
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention
from debubble.planner.model.transformer import Layer, Mlp, Model


class Published(NamedTuple):
    """A configuration and its measured seconds."""

    model: Model
    cluster: Cluster
    training: Training
    candidate: Candidate
    measured: float

    def seconds(self, factors: Factors) -> float:
        """Predicted seconds."""
        return step_time(self.case(factors)).seconds

    def calibrated(self) -> Factors:
        """Efficiencies that the measured step says."""
        return calibrated(self.case(), self.measured)

    def case(self, factors: Factors | None = None) -> Case:
        """The case, with some efficiencies."""
        return Case(*self[:4], factors or Factors())


def gpt(layers: int, hidden: int, heads: int, vocabulary: int = 51200) -> Model:
    """A classic GPT."""
    layer = Layer(Attention(heads, heads, hidden // heads), Mlp(4 * hidden, gated=False))
    return Model(
        f"gpt-{layers}", hidden, (layer,) * layers, vocabulary, tied=True, norm="layer",
        dropout=True,
    )  # fmt: skip


def korthikanti(size: str, recompute: str) -> Published:
    """A column of arXiv 2205.05198, Table 5; full recompute is without sequence parallelism."""
    layers, hidden, heads, pp, chunks, batch, micro, full, selective = {
        "22B": (48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
        "175B": (96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75),
        "530B": (105, 20480, 128, 35, 3, 280, 1, 49.05, 37.83),
        "1T": (128, 25600, 160, 64, 1, 512, 1, 94.42, 71.49),
    }[size]
    split = recompute == "selective"
    training = Training(
        batch, 2048, "fp16", gradient_bytes=2, flash=False, sequence_parallel=split, fused=False,
        overlap_tp=False, overlap_dp=False, overlap_p2p=False,
    )  # fmt: skip
    candidate = Candidate(
        Degrees(tp=8, pp=pp, chunks=chunks), micro, batch // micro,
        "interleaved-1f1b" if chunks > 1 else "1f1b", (layers // pp // chunks,) * pp * chunks,
        recompute, 0,
    )  # fmt: skip
    cluster = Cluster(find_gpu("a100-80gb"), 8 * pp)
    seconds = selective if split else full
    return Published(gpt(layers, hidden, heads), cluster, training, candidate, seconds)


def dgxc(model: str, degrees: Degrees, batch: int, sequence: int, seconds: float) -> Published:
    """A row of NVIDIA's dgxc-benchmarking v25.04.02: H100, bf16, microbatches of one sequence."""
    known = read_model(model)
    candidate = Candidate(
        degrees, 1, batch // degrees.dp, "interleaved-1f1b",
        spread(len(known.layers), degrees.stages),
    )  # fmt: skip
    cluster = Cluster(find_gpu("h100"), degrees.gpus)
    return Published(
        known, cluster, Training(batch, sequence, gradient_bytes=2), candidate, seconds
    )


def llama_70b() -> Published:
    """Llama 3 70B on 64 GPUs."""
    return dgxc("llama-3.1-70b", Degrees(4, 2, 1, 2, 4, 5), 128, 8192, 14.66)


def llama_405b() -> Published:
    """Llama 3.1 405B on 1024 GPUs."""
    return dgxc("llama-3.1-405b", Degrees(8, 2, 1, 8, 8, 8), 512, 8192, 19.84)


def nemotron_340b() -> Published:
    """Nemotron 4 340B on 256 GPUs."""
    return dgxc("nemotron-4-340b", Degrees(8, 1, 1, 4, 8, 12), 64, 4096, 4.36)


def gpt_175b() -> Published:
    """GPT-3 175B on 128 GPUs."""
    return dgxc("gpt-3-175b", Degrees(4, 1, 1, 4, 8, 6), 256, 2048, 8.309)
