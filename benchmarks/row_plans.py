"""Rows of published measurements as models, trainings and candidates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from row_models import VOCABULARY, row_model

from debubble.core.errors import did_you_mean
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.calibration_files import LARGEST, MOST_ACTIONS, spread
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.frameworks.habits import DEEPSPEED, Habits
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.torch.runtime import EVERY_SECOND, TORCH
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import GPUS, Gpu
from debubble.planner.memory.layer_bytes import RECOMPUTE_MODULES
from debubble.planner.model.transformer import Model

NUMBERS = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "experts", "topk", "gpus", "tp",
    "pp", "vp", "cp", "ep", "dp", "micro_batch", "global_batch",
)  # fmt: skip
"""Columns with whole numbers."""

MOST_LAYERS = 4096
"""Most layers of a row."""

SCHEDULES = {
    "none": "1f1b", "zb-1p": "zb-h1", "dualpipev": "dualpipe-v", "zbv": "zb-v",
    "zbvzerobubble": "zb-v",
}  # fmt: skip
"""Names that rows have for registered schedules. ZB-1p has ZB-H1's times in all published cases."""

TWO_CHUNKS = ("zb-v", "zbv", "zbvzerobubble", "v-half", "v-min", "dualpipev", "dualpipe-v")
"""Schedules with two stages on every rank."""

NETWORKS = {"bigscience": 6.25e9}
"""Network per GPU in bytes per second where a source's cluster differs from the usual one of its
GPU: Jean Zay joins nodes of eight A100 by four links of 100 Gb/s."""

FUSED_LOSSES = ("llm-foundry",)
"""Sources whose loss is one kernel by default (``loss_fn: fused_crossentropy``)."""

MEGATRON_FSDP_YEAR = 2025
"""First year of sources whose Megatron-LM can split gradients and weights."""

FLASH_YEAR = 2023
"""First year of sources whose attention stores no scores, where they train in bf16."""

NARROW_GRADIENTS = ("dgxc-benchmarking", "Megatron-Bridge", "NVIDIA/NeMo")
"""Sources whose recipes keep gradients in 16 bits (``grad_reduce_in_fp32=False``)."""

BEFORE_OVERLAP = ("v100", "a100")
"""GPUs whose published pipelines ran with software that overlapped no communication."""


@dataclass(frozen=True)
class RowPlan:
    """What a row ran, and what was measured; None where a row has no figure.

    `assumed` names what the row does not say.
    """

    model: Model
    cluster: Cluster
    training: Training
    candidate: Candidate
    seconds: float | None
    memory: float | None
    assumed: tuple[str, ...] = field(default=())

    def case(self, factors: Factors) -> Case:
        """The case, with some efficiencies."""
        return Case(self.model, self.cluster, self.training, self.candidate, factors)


def read_row(row: Mapping[str, str]) -> RowPlan:
    """The plan of a row, or a ValueError with the reason why it cannot be predicted."""
    numbers = {key: _whole(row.get(key), key) for key in NUMBERS}
    assumed: list[str] = []

    def get(key: str, default: int | None) -> int:
        value = numbers[key]
        if value is None and default is None:
            raise ValueError(f"{key} not given")
        if value is None:
            assumed.append(f"{key} {default}")
        return int(value if value is not None else default or 0)

    if (numbers["layers"] or 0) > MOST_LAYERS:
        raise ValueError(f"{numbers['layers']} layers; at most {MOST_LAYERS} are predicted")
    model = row_model(row.get("model") or "", numbers)
    if numbers["vocab"] is None:
        assumed.append(f"vocab {VOCABULARY}")
    gpu = _gpu(row)
    gpus, sequence, batch = get("gpus", None), get("seq", None), get("global_batch", None)
    pp = get("pp", None)
    name = re.sub(r"\s*\(.*", "", row.get("schedule") or "").strip().lower()
    interleaved = name.startswith("interleaved")
    unsaid = not name and (row.get("gpu") or "").lower().startswith(BEFORE_OVERLAP) is False
    two = 2 if interleaved or unsaid or name in TWO_CHUNKS else 1
    if two == 2 and pp > 1 and numbers["vp"] is None:
        each = max(len(model.layers) // pp, 1)
        two = next((v for v in range(2, each + 1) if each % v == 0), 2)
    chunks = get("vp", two) if pp > 1 else 1
    tp, cp = get("tp", None), get("cp", 1)
    dp = get("dp", max(gpus // (tp * cp * pp), 1))
    degrees = Degrees(tp, cp, get("ep", 1), dp, pp, chunks)
    if degrees.gpus != gpus:
        raise ValueError(f"degrees make {degrees.gpus} GPUs, the row has {gpus}")
    micro = get("micro_batch", 1)
    if batch % (micro * dp):
        raise ValueError(f"batch {batch} is no multiple of {micro} x dp {dp}")
    if 2 * degrees.stages * (batch // (micro * dp)) > MOST_ACTIONS:
        raise ValueError(f"batch {batch} makes more than {MOST_ACTIONS:,} actions")
    schedule = "interleaved-1f1b" if interleaved else SCHEDULES.get(name, name) or "1f1b"
    if schedule in ("1f1b", "interleaved-1f1b"):
        schedule = "interleaved-1f1b" if chunks > 1 else "1f1b"
    recompute = _recompute(row.get("recompute") or "")
    if not (row.get("recompute") or "").strip():
        assumed.append("recompute none")
    candidate = Candidate(
        degrees, micro, batch // (micro * dp), schedule,
        spread(len(model.layers), degrees.stages), recompute, _zero(row),
        _modules(row.get("recompute") or ""),
    )  # fmt: skip
    training = _training(row, batch, sequence, candidate)
    return RowPlan(
        model, Cluster(gpu, gpus), training, candidate, _measured(row.get("step_s")),
        _scaled(_measured(row.get("mem_gb")), 1e9), tuple(assumed),
    )  # fmt: skip


def _training(row: Mapping[str, str], batch: int, sequence: int, candidate: Candidate) -> Training:
    """The training of a row; its year says what the software of the time could."""
    source, recompute = row.get("source") or "", row.get("recompute") or ""
    year, old = _year(source), (row.get("gpu") or "").lower().startswith(BEFORE_OVERLAP)
    modern = not old or (row.get("notes") or "").startswith("MegaScale")
    split = "+SP" in recompute or (modern and "no SP" not in recompute)
    precision = (row.get("precision") or "bf16").lower()
    half = "fp16" in precision
    narrow = half or any(name in source for name in NARROW_GRADIENTS)
    return Training(
        batch, sequence, _precision(precision), gradient_bytes=2 if narrow else 4,
        flash=candidate.zero >= 3 or (year >= FLASH_YEAR and not half), sequence_parallel=split,
        overlap_tp=modern and "vanilla TP" not in (row.get("notes") or ""),
        overlap_dp=modern or candidate.zero >= 3,
        overlap_p2p=modern or "1f1b" not in candidate.schedule,
        fused=not half and year >= FLASH_YEAR, runtime=_runtime(row),
        fused_loss=any(name in source for name in FUSED_LOSSES),
    )  # fmt: skip


def _runtime(row: Mapping[str, str]) -> Habits:
    """The software of a row, by its schedule, its model, its way to shard and its source."""
    text = {key: (row.get(key) or "").lower() for key in ("schedule", "model", "zero", "source")}
    if "deepspeed" in text["schedule"] or "mt-nlg" in text["model"]:
        return DEEPSPEED
    sharded = "fsdp" in text["zero"] and "megatron" not in text["source"]
    return TORCH if sharded or "torchtitan" in text["source"] else MEGATRON


def _precision(text: str) -> str:
    """The first precision that is part of a row's text: ``"fp8-cs"`` is fp8."""
    found = (name for name in ("nvfp4", "mxfp8", "fp8", "bf16", "fp16") if name in text)
    precision = next(found, None)
    if precision is None:
        raise ValueError(f"precision {text!r} is not modeled")
    return "mxfp8" if "fp8-mx" in text else precision


def _year(source: str) -> int:
    """The year of a source, from its arXiv number or from a year in it; else a recent one."""
    if match := re.search(r"arXiv:(\d\d)\d\d\.", source):
        return 2000 + int(match[1])
    years = [int(year) for year in re.findall(r"\b(20[12]\d)\b", source)]
    return min(years, default=2025)


def _gpu(row: Mapping[str, str]) -> Gpu:
    text = (row.get("gpu") or "").lower()
    known = [name for name in GPUS if text.startswith(name)]
    if not known:
        raise ValueError(f"unknown GPU {row.get('gpu')!r}; {did_you_mean(text, GPUS)}")
    gpu = GPUS[max(known, key=len)]
    source = (row.get("source") or "").lower()
    network = next((rate for key, rate in NETWORKS.items() if key in source), None)
    return gpu if network is None else replace(gpu, nic=network)


def _recompute(text: str) -> str:
    if text.startswith("full"):
        return "full"
    return "none" if text in ("", "none") else "selective"


def _modules(text: str) -> tuple[str, ...]:
    """Modules that a row computes again: those it names, by Megatron-LM's names."""
    if "(op)" in text:
        return (EVERY_SECOND,)
    names = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts"}
    found = (names.get(word.strip(), word.strip()) for word in text.split(","))
    return tuple(name for name in found if name in RECOMPUTE_MODULES)


def _zero(row: Mapping[str, str]) -> int:
    """The stage that a row's text begins with, 1 where it says nothing.

    FSDP alone splits all, or gradients and optimizer states where weights are kept. Megatron-LM had
    no split gradients before Megatron-FSDP: what is called stage 2 of it until then is its
    distributed optimizer, which scatters gradients once per step.
    """
    text = row.get("zero") or ""
    if text.startswith("FSDP"):
        return 2 if "weights kept" in text else 3
    match = re.match(r"\s*([0-3])", text)
    stage = int(match[1]) if match else 1
    early = _runtime(row) == MEGATRON and _year(row.get("source") or "") < MEGATRON_FSDP_YEAR
    return 1 if stage == 2 and early else stage


def _whole(text: str | None, key: str) -> int | None:
    """A whole number; None for empty cells and for words such as NA."""
    text = (text or "").strip()
    if not text or not re.match(r"[\d.]", text):
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{key} {text!r} is no number") from None
    if not 1 <= number <= LARGEST or number != int(number):
        raise ValueError(f"{key} {text!r} is no whole number from 1 to {LARGEST:,}")
    return int(number)


def _measured(text: str | None) -> float | None:
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
