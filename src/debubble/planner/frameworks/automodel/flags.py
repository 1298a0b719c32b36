"""Settings of NeMo Automodel, as YAML."""

from __future__ import annotations

import json

from debubble.interchange.launchers import placing_name
from debubble.interchange.layouts import AUTOMODEL, in_v
from debubble.planner.case import Case
from debubble.planner.frameworks.launch import about, comment, nodes, nodes_text
from debubble.planner.frameworks.torch.flags import CSV, csv_command, own_name

CHECKPOINTING = {"none": "false", "selective": "selective", "full": "full"}


def automodel_lines(case: Case) -> list[str]:
    """Return the YAML that makes NeMo Automodel run a plan that breaks none of its rules."""
    own, d, training = case.candidate, case.degrees, case.training
    sharding = "true" if own.zero == 3 else "false"
    lines = [
        "distributed:",
        "  strategy: fsdp2",
        f"  dp_size: {d.dp}",
        f"  tp_size: {d.tp}",
        f"  cp_size: {d.cp}",
        f"  pp_size: {d.pp}",
        f"  ep_size: {d.ep}",
        f"  sequence_parallel: {str(d.tp > 1 and training.sequence_parallel).lower()}",
        f"  activation_checkpointing: {CHECKPOINTING[own.recompute]}",
        f"  reshard_after_forward: {sharding}",
    ]
    if own.zero == 1:
        lines.append("  # FSDP2 shards gradients, too: it has ZeRO 2 and 3, not 1")
    if case.hides_tensors:
        lines.append("  # planned with half of the tensor-parallel communication hidden, as in")
        lines.append("  # torchtitan; here all of it takes time")
    local = own.microbatch_size
    if d.pp > 1:
        local *= own.microbatches
        lines += ["  pipeline:", *(f"    {line}" for line in _pipeline(case))]
    return [
        *lines,
        "step_scheduler:",
        f"  global_batch_size: {training.batch}",
        f"  local_batch_size: {local}",
        *["fp8:", "  enabled: true"] * (training.precision == "fp8"),
        *["  enable_fsdp_float8_all_gather: true"] * training.narrow_weights,
        f"# sequences of {training.sequence} tokens: in the section of the dataset",
    ]


HEAD = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
seed: 1111
dist_env:
  backend: nccl
  timeout_minutes: 10
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config: MODEL  # fill in: a model on Hugging Face, or the folder of its config.json
"""
TAIL = """\
dataset:  # fill in: data; this is random
  _target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset
  vocab_size: {vocabulary}
  seq_len: {sequence}
dataloader:
  _target_: torchdata.stateful_dataloader.StatefulDataLoader
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
optimizer:
  _target_: torch.optim.AdamW
  lr: 1.0e-4
checkpoint:
  enabled: false
"""
"""Sections that no plan is about."""


def automodel_file(case: Case) -> str:
    """Return the YAML of a recipe, for ``automodel FILE`` or torchrun on several nodes."""
    hosts, each = nodes(case)
    tail = TAIL.format(vocabulary=case.model.vocabulary, sequence=case.training.sequence)
    body = "\n".join(line for line in automodel_lines(case) if not line.startswith("#"))
    body = body.replace("step_scheduler:", "step_scheduler:\n  max_steps: 100")
    return (
        f"{comment(about(case))}# {nodes_text(case)}: torchrun --nnodes {hosts} "
        f"--nproc-per-node {each} -m nemo_automodel.cli.app FILE\n{HEAD}{body}\n{tail}"
    )


def _pipeline(case: Case) -> list[str]:
    own = case.candidate
    name = own_name(case)
    if name is None or in_v(case.placement):
        # Only one name places stages in a V.
        lines = [
            f"pp_schedule: {placing_name(case.placement)}",
            f"pp_schedule_csv: {CSV}",
            f"# {csv_command(case)}",
        ]
    else:
        lines = [f"pp_schedule: {name}"]
    return [
        *lines,
        f"pp_microbatch_size: {own.microbatch_size}",
        "module_fqns_per_model_part:",
        *(f"  - {json.dumps(names)}" for names in AUTOMODEL.of(own.layers)),
    ]
