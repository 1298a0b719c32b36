"""YAML of Primus: Megatron-LM's arguments as overrides of its pre-trainer."""

from __future__ import annotations

import json
from typing import Any

from debubble.planner.case import Case
from debubble.planner.frameworks.launch import about, comment
from debubble.planner.frameworks.megatron.flags import megatron_lines
from debubble.planner.frameworks.megatron.model_arguments import model_arguments, said_missing
from debubble.planner.frameworks.megatron.script import positions
from debubble.planner.frameworks.megatron.values import argument_values

HEAD = """\
work_group: ${PRIMUS_TEAM:amd}
user_name: ${PRIMUS_USER:root}
exp_name: ${PRIMUS_EXP_NAME:plan}
workspace: ${PRIMUS_WORKSPACE:./output}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: language_model.yaml
    overrides:
"""

TRAINING = """\
      mock_data: true  # fill in: train_data_path
      tokenizer_type: NullTokenizer  # fill in: tokenizer_type and tokenizer_model
      train_iters: 100
      lr: 1.0e-4
      lr_decay_style: constant
"""


def primus_lines(case: Case) -> list[str]:
    """Return the overrides with which Primus runs a plan that breaks none of Megatron's rules."""
    return [f"{name}: {json.dumps(value)}" for name, value in plan_values(case).items()]


def plan_values(case: Case) -> dict[str, Any]:
    """Return the values of Megatron-LM's arguments; sequence parallelism is on by default."""
    found = argument_values(megatron_lines(case))
    return {"sequence_parallel": False, **found}


def primus_file(case: Case) -> str:
    """Return the YAML of an experiment, for ``primus-cli direct -- train pretrain --config``."""
    shape = [*model_arguments(case.model), *positions(case)]
    defaults = {"swiglu": False, "untie_embeddings_and_output_weights": False}
    notes = {
        name: f"  # {note}"
        for line in shape
        if (note := line.partition("  # ")[2])
        for name in argument_values([line])
    }
    values = defaults | argument_values(shape)
    lines = [f"{name}: {json.dumps(value)}{notes.get(name, '')}" for name, value in values.items()]
    left = [line for line in shape if line.startswith("#")]
    body = "".join(f"      {line}\n" for line in [*lines, *left, *primus_lines(case)])
    head = comment(about(case)) + comment(said_missing(case.model))
    return f"{head}{HEAD}{body}{TRAINING}"
