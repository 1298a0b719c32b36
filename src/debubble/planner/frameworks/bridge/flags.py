"""A Python recipe of Megatron-Bridge: Megatron-LM's arguments as fields of its configuration."""

from __future__ import annotations

from debubble.planner.case import Case
from debubble.planner.frameworks.launch import about, comment, nodes, nodes_text
from debubble.planner.frameworks.megatron.flags import connections, megatron_lines
from debubble.planner.frameworks.megatron.values import argument_values

SECTIONS = {
    "train": ("micro_batch_size", "global_batch_size"),
    "ddp": (
        "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
        "use_megatron_fsdp", "data_parallel_sharding_strategy",
    ),
    "optimizer": (
        "use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype",
        "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d",
    ),
    "mixed_precision": ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"),
    "checkpoint": ("ckpt_format",),
    "rng": ("te_rng_tracker",),
}  # fmt: skip
"""Sections of the configuration and the values in them; all others are the model's."""

OWNER = {name: section for section, names in SECTIONS.items() for name in names}

PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Names of its mixed precisions; current scaling is by each tensor's largest value."""

RENAMED = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}
"""Values with other names than in Megatron-LM."""

DTYPES = {"bf16": "torch.bfloat16", "fp32": "torch.float32", "fp8": "torch.uint8"}


def bridge_lines(case: Case) -> list[str]:
    """Return the assignments with which Megatron-Bridge runs a plan of Megatron-LM."""
    values = argument_values(megatron_lines(case))
    d, sequence = case.degrees, values["seq_length"]
    values |= {"sequence_parallel": bool(values.get("sequence_parallel"))}
    chunks = values.pop("num_virtual_stages_per_pipeline_rank", 0)
    chunks = d.chunks if values.pop("num_layers_per_virtual_pipeline_stage", 0) else chunks
    values.setdefault("use_distributed_optimizer", False)
    if case.training.precision in ("fp8", "mxfp8"):
        values.setdefault("fp8_param_gather", False)
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        values.setdefault(name, False)
    narrow = values.pop("grad_reduce_in_bf16", False)
    for name in ("tp_comm_overlap", "bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe"):
        values.pop(name, None)
    if "pipeline_model_parallel_layout" not in values and chunks:
        values["virtual_pipeline_model_parallel_size"] = chunks
    mixed = PRECISIONS[case.training.precision]
    lines = [
        f"cfg.mixed_precision = get_mixed_precision_config({mixed!r})",
        f"cfg.mixed_precision.grad_reduce_in_fp32 = {not narrow}",
        f"cfg.dataset.seq_length = {sequence}",
        # It also overlaps messages between stages, and replicas.
        f"cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap={case.hides_tensors})",
    ]
    for name, value in values.items():
        own = RENAMED.get(name, name)
        shown = DTYPES[value] if name.endswith("dtype") else repr(value)
        lines.append(f"cfg.{OWNER.get(name, 'model')}.{own} = {shown}")
    lines.append("cfg.optimizer.use_distributed_optimizer = cfg.ddp.use_distributed_optimizer")
    if d.pp > 1:
        half = "torch.float16" if case.training.precision == "fp16" else "torch.bfloat16"
        lines.append(f"cfg.model.pipeline_dtype = {half}")
    return lines


def bridge_file(case: Case) -> str:
    """Return a Python file that trains a model by a plan of Megatron-LM."""
    hosts, each = nodes(case)
    export = connections(case)
    setting = f"{export} " if export else ""
    body = "".join(f"    {line}\n" for line in bridge_lines(case))
    return f'''{comment(about(case))}# {nodes_text(case)}:
# {setting}torchrun --nnodes {hosts} --nproc-per-node {each} FILE
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain

MODEL = "fill/in"  # fill in: the model on Hugging Face, or a folder with its config.json


def plan_config() -> ConfigContainer:
    """Return the configuration of {case.model.name} as planned."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    cfg.tokenizer.tokenizer_type = "NullTokenizer"  # fill in: the tokenizer
    cfg.tokenizer.vocab_size = {case.model.vocabulary}
    cfg.dataset.blend = None  # fill in: data, mock data unless given
    cfg.train.train_iters = 100
{body}    return cfg


if __name__ == "__main__":
    pretrain(plan_config(), forward_step)
'''
