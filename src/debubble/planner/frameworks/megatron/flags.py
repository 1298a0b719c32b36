"""Arguments of Megatron-LM."""

from __future__ import annotations

import shlex

from debubble.interchange.layouts import layout_text
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.case import Case
from debubble.planner.frameworks.megatron.rules import OVERLAP, OVERLAP_FLAG
from debubble.planner.memory.activations import recompute_modules

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's names of the levels of ZeRO."""


PRECISIONS = {
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp8": ["--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"],
    "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"],
}
"""Products in fp8 scale each tensor by its largest value, the others small blocks; all else is in
bf16."""

NARROW_WEIGHTS = {
    "fp8": ["--fp8-param-gather"],
    "mxfp8": ["--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"],
    "nvfp4": ["--fp4-param-gather"],
}
"""Arguments that store and gather weights in the precision of products."""


def megatron_lines(case: Case) -> list[str]:
    """Return the arguments that make Megatron-LM run a plan that breaks none of its rules."""
    own, d, training = case.candidate, case.degrees, case.training
    lines = [
        f"--tensor-model-parallel-size {d.tp}",
        *["--sequence-parallel"] * (d.tp > 1 and training.sequence_parallel),
        *["--tp-comm-overlap"] * case.hides_tensors,
        f"--context-parallel-size {d.cp}",
        f"--pipeline-model-parallel-size {d.pp}",
        *split_lines(own, case.model.mtp),
    ]
    if case.model.mtp:
        lines.append(f"--mtp-num-layers {case.model.mtp}")
    if d.chunks > 1:
        lines.append(f"--microbatch-group-size-per-virtual-pipeline-stage {d.pp}")
    if case.model.experts:
        lines += [
            f"--expert-model-parallel-size {d.ep}",
            # Left out, experts would be split like attention.
            "--expert-tensor-parallel-size 1",
            "--moe-token-dispatcher-type alltoall",
            "--moe-grouped-gemm",
            *["--moe-permute-fusion"] * training.fused,
        ]
    if own.schedule == OVERLAP:
        lines.append(OVERLAP_FLAG)
    lines += [
        f"--micro-batch-size {own.microbatch_size}",
        f"--global-batch-size {training.batch}",
        f"--seq-length {training.sequence}",
        *PRECISIONS[training.precision],
        *["--attention-backend unfused"] * (not training.flash),
        *_state(case),
        *_recompute(case),
    ]
    if d.tp > 1 or d.cp > 1:
        lines += _environment(case)
    return lines


def split_lines(own: Candidate, mtp: int) -> list[str]:
    """Return the arguments that cut layers into stages, or a layout."""
    cut, ranks, chunks = own.layers, own.degrees.pp, own.degrees.chunks
    layout = f"--pipeline-model-parallel-layout {shlex.quote(layout_text(cut, mtp, own.mtp_stage))}"
    if ranks == 1:
        return []
    if own.mtp_at != len(cut) - 1:
        return [layout]
    count, stages = sum(cut), len(cut)
    virtual = [f"--num-virtual-stages-per-pipeline-rank {chunks}"] * (chunks > 1)
    if list(cut) == [count // stages] * stages:
        return [f"--num-layers-per-virtual-pipeline-stage {cut[0]}"] * (chunks > 1)
    for embedding, loss in ((1, 1), (0, 1), (1, 0)):
        each, left = divmod(count + embedding + loss, stages)
        if not left and list(cut) == [each - embedding, *[each] * (stages - 2), each - loss]:
            return [
                *virtual,
                *["--account-for-embedding-in-pipeline-split"] * embedding,
                *["--account-for-loss-in-pipeline-split"] * loss,
            ]
    first, middle, last = cut[0], cut[1], cut[-1]
    by_rank = [first, *[middle] * (ranks - 2), last]
    if list(cut) == by_rank * chunks and min(by_rank) > 0:
        lines = virtual
        if ranks == 2 or first != middle:
            lines = [*lines, f"--decoder-first-pipeline-num-layers {first * chunks}"]
        if ranks > 2 and last != middle:
            lines = [*lines, f"--decoder-last-pipeline-num-layers {last * chunks}"]
        return lines
    return [layout]


def _state(case: Case) -> list[str]:
    """Return the arguments on splitting weights, gradients and optimizer states."""
    zero, training = case.candidate.zero, case.training
    lines = ["--use-distributed-optimizer"] * (zero >= 1)
    if training.overlap_dp:
        lines += ["--overlap-grad-reduce", *["--overlap-param-gather"] * (zero >= 1)]
    if zero > 1:
        lines += [
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy {SHARDING[zero]}",
            "--ckpt-format fsdp_dtensor",
        ]
    if training.gradient_bytes == 2:
        lines.append("--grad-reduce-in-bf16")
    if training.narrow_weights and zero >= 1:
        lines += NARROW_WEIGHTS[training.precision]
    if training.moment_bytes < 4 or training.offload_optimizer:
        lines.append("--use-precision-aware-optimizer")
    if training.moment_bytes < 4:
        kind = {2: "bf16", 1: "fp8"}[training.moment_bytes]
        lines += [f"--exp-avg-dtype {kind}", f"--exp-avg-sq-dtype {kind}"]
    if training.offload_optimizer:
        lines += ["--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d"]
    if training.graph_pools:
        lines += ["--cuda-graph-impl local", "--te-rng-tracker"]
    return lines


def _recompute(case: Case) -> list[str]:
    recompute = case.candidate.recompute
    layers = recomputed_layers(recompute)
    if recompute == "none":
        return []
    if recompute != "selective":
        return [
            "--recompute-granularity full",
            f"--recompute-method {'uniform' if layers is None else 'block'}",
            f"--recompute-num-layers {layers or 1}",
        ]
    modules = " ".join(recompute_modules(case))
    return ["--recompute-granularity selective", f"--recompute-modules {modules}"]


def _environment(case: Case) -> list[str]:
    if case.candidate.zero > 1:
        return ["# environment: leave CUDA_DEVICE_MAX_CONNECTIONS unset, as Megatron-FSDP needs it"]
    value = connections(case)
    return [f"# environment: {value}"] if value else []


def connections(case: Case) -> str:
    """Return the setting of the environment with which work overlaps; empty where none is due.

    With 1, communication starts before the product that is to hide it; Blackwell needs no setting.
    Copies next to the exchange between experts take 32.
    """
    d, own = case.degrees, case.candidate
    if (d.tp == 1 and d.cp == 1) or own.zero > 1:
        return ""
    if own.schedule == OVERLAP:
        return "CUDA_DEVICE_MAX_CONNECTIONS=32"
    return "" if case.gpu.fp4 else "CUDA_DEVICE_MAX_CONNECTIONS=1"
