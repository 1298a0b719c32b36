"""Settings of NeMo Automodel, as YAML."""

from __future__ import annotations

import json

from debubble.interchange.launchers import placing_name
from debubble.interchange.layouts import AUTOMODEL, in_v
from debubble.planner.case import Case
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
