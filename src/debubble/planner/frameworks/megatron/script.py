"""A shell script that runs a plan with Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterable

from debubble.planner.case import Case
from debubble.planner.frameworks.launch import about, comment, nodes
from debubble.planner.frameworks.megatron.flags import connections, megatron_lines
from debubble.planner.frameworks.megatron.model_arguments import model_arguments, said_missing

TRAINING = (
    "--mock-data  # fill in: --data-path and --split",
    "--tokenizer-type NullTokenizer  # fill in: --tokenizer-type and --tokenizer-model",
    "--train-iters 100",
    "--lr 1e-4",
    "--lr-decay-style constant",
    "--log-interval 1",
    "--eval-iters 0",
)
"""Arguments that no plan is about."""

LAUNCHER = """\
NODES={nodes}
GPUS_PER_NODE={gpus}
NODE_RANK=${{NODE_RANK:-0}}                # on every node another
MASTER_ADDR=${{MASTER_ADDR:-localhost}}    # the first node
MASTER_PORT=${{MASTER_PORT:-6000}}
"""
TORCHRUN = """\
torchrun --nnodes "$NODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \\
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\
"""
PRETRAIN = '  "$MEGATRON/pretrain_gpt.py" "${MODEL[@]}" "${PLAN[@]}" "${TRAINING[@]}"\n'


def megatron_script(case: Case) -> str:
    """Return the script that runs a plan that breaks none of Megatron-LM's rules."""
    model = array("MODEL", [*model_arguments(case.model), *positions(case)])
    plan = array("PLAN", (line for line in megatron_lines(case) if not line.startswith("#")))
    hosts, each = nodes(case)
    head = comment(about(case)) + comment(said_missing(case.model))
    export = connections(case)
    environment = f"export {export}\n" if export else ""
    if case.candidate.zero > 1:
        environment = "unset CUDA_DEVICE_MAX_CONNECTIONS  # as Megatron-FSDP needs it\n"
    return (
        f"#!/bin/bash\n{head}set -euo pipefail\n\n"
        "MEGATRON=${MEGATRON:-.}                  # fill in: the folder of Megatron-LM\n"
        f"{LAUNCHER.format(nodes=hosts, gpus=each)}{environment}\n"
        f"{model}\n{plan}\n{array('TRAINING', TRAINING)}\n"
        f"{TORCHRUN}{PRETRAIN}"
    )


def array(name: str, lines: Iterable[str]) -> str:
    """Return lines of arguments as an array of a shell script."""
    return "\n".join([f"{name}=(", *(f"  {line}" for line in lines), ")\n"])


def positions(case: Case) -> list[str]:
    """Return the argument of the longest sequence, unless the model has learned positions."""
    if case.model.positions:
        return []
    return [f"--max-position-embeddings {case.training.sequence}"]
