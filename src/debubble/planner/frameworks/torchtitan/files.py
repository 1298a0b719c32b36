"""Configurations of torchtitan: Python for version 0.3, TOML for versions up to 0.2.2."""

from __future__ import annotations

import json
import re
from typing import Any

from debubble.interchange.layouts import TORCHTITAN, TORCHTITAN_0_2, ModuleNames
from debubble.planner.case import Case
from debubble.planner.frameworks.launch import about, comment, nodes, nodes_text
from debubble.planner.frameworks.torch.flags import csv_command, own_name
from debubble.planner.frameworks.torchtitan.flags import (
    compiling,
    parallelism,
    schedule_values,
    training,
)

KNOWN = (
    (r"llama-3[.\d]*-(8b|70b|405b)", "llama3", "llama3_{}"),
    (r"qwen3-(0\.6b|1\.7b|14b|32b)", "qwen3", "qwen3_{}"),
    (r"qwen3-(30b-a3b)", "qwen3", "qwen3_{}"),
    (r"gpt-oss-(20b|120b)", "gpt_oss", "gpt_oss_{}"),
    (r"deepseek-v3", "deepseek_v3", "deepseek_v3_671b"),
)
"""Names of models here, their modules in torchtitan, and the functions of their configurations."""

PLACEHOLDER = ("llama3", "llama3_debugmodel")
"""A module and a function where torchtitan has no configuration of a model."""

RECOMPUTE = {"selective": "SelectiveAC.Config()", "full": "FullAC.Config()", "none": "None"}


def torchtitan_python(case: Case) -> str:
    """Return a module with the configuration of a plan that breaks none of torchtitan's rules.

    It is for ``torchrun … -m torchtitan.train --module plan --config plan``.
    """
    hosts, each = nodes(case)
    module, function, known = _base(case)
    base = f"from torchtitan.models.{module}.config_registry import {function} as base"
    mark = "" if known else "# fill in: module and function of this model's configuration\n"
    lines = [_wrapped(f"config.{name} = {json.dumps(value)}") for name, value in _values(case)]
    lines = [line.replace("= true", "= True").replace("= false", "= False") for line in lines]
    converter = CONVERTERS.get(case.training.precision, "")
    body = "".join(
        f"    {line}\n" for line in [*lines, *(_converting(converter) if converter else ())]
    )
    return f'''{comment(about(case))}# {hosts} nodes, with this file in the folder as plan.py:
# torchrun --nnodes {hosts} --nproc-per-node {each} -m torchtitan.train --module plan --config plan
{_order(case)}{_imports(converter)}{mark}{base}
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    """Return the configuration of {case.model.name} as planned."""
    config = base()
    config.hf_assets_path = "./assets/hf"  # fill in: the folder of the tokenizer
    config.training.steps = 100
    config.activation_checkpoint = {RECOMPUTE[case.candidate.recompute]}
{body}    return config
'''


CONVERTERS = {
    "fp8": 'Float8LinearConverter.Config(recipe_name="rowwise", model_compile_enabled=True)',
    "mxfp8": "MXFP8LinearConverter.Config(model_compile_enabled=True)",
}
"""Converters of linear layers by precision."""


def _imports(converter: str) -> str:
    """Return the imports of a configuration, with those of a converter if there is one."""
    text = "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\n"
    if not converter:
        return text
    name = converter.partition(".")[0]
    first = "from importlib import import_module\n\n"
    return f"{first}from torchtitan.components.quantization import {name}\n{text}"


def _converting(converter: str) -> tuple[str, ...]:
    """Return the lines that build the model with a converter."""
    return (
        'registry = import_module(f"torchtitan.models.{config.model_spec.name}").model_registry',
        f"converter = {converter}",
        "config.model_spec = registry(config.model_spec.flavor, converters=[converter])",
    )


def _values(case: Case) -> list[tuple[str, Any]]:
    """Return the values of sections on parallelism and training, for version 0.3."""
    values = parallelism(case) | training(case) | compiling(case)
    if case.degrees.pp > 1:
        values |= schedule_values(case) | {"training.disable_cuda_graphs": True}
        return [*values.items(), _modules(case, TORCHTITAN)]
    return list(values.items())


def torchtitan_toml(case: Case) -> str:
    """Return TOML for torchtitan up to 0.2.2: ``torchtitan.train --job.config_file plan.toml``."""
    module, function, known = _base(case)
    values: dict[str, Any] = {
        "job.description": about(case),
        "model.name": module,
        "model.flavor": function.rpartition("_")[2].upper() if known else "debugmodel",
        "model.hf_assets_path": "./assets/hf",
        "training.steps": 100,
        **training(case),
        **parallelism(case),
        **compiling(case),
        "activation_checkpoint.mode": case.candidate.recompute,
    }
    if case.candidate.recompute == "selective":
        values["activation_checkpoint.selective_ac_option"] = "op"
    if case.degrees.pp > 1:
        values |= schedule_values(case) | dict([_modules(case, TORCHTITAN_0_2)])
    values.pop("parallelism.enable_sequence_parallel", None)  # this version has no such key
    if values.pop("compile.enable_async_tensor_parallel", False):
        values["parallelism.enable_async_tensor_parallel"] = True
    if case.training.precision == "fp8":
        values["model.converters"] = ["quantize.linear.float8"]
        values["quantize.linear.float8.recipe_name"] = "rowwise"
    if case.training.precision == "mxfp8":
        values["model.converters"] = ["quantize.linear.mx"]
    hosts, each = nodes(case)
    text = f"{comment(about(case))}# torchtitan up to 0.2.2, {nodes_text(case)}:\n"
    text += f"# torchrun --nnodes {hosts} --nproc-per-node {each} -m torchtitan.train "
    text += f"--job.config_file plan.toml\n{_order(case)}"
    text += "# fill in: hf_assets_path, the folder of the tokenizer"
    text += "\n" if known else ", and name and flavor of the model\n"
    for section in dict.fromkeys(name.rpartition(".")[0] for name in values):
        text += f"\n[{section}]\n"
        for name, value in values.items():
            head, _, key = name.rpartition(".")
            text += f"{key} = {_toml(value)}\n" if head == section else ""
    return text


def _base(case: Case) -> tuple[str, str, bool]:
    """Return module and function of a model's configuration, and whether it is known."""
    for pattern, module, function in KNOWN:
        if found := re.fullmatch(pattern, case.model.name.lower()):
            own = found.group(1) if found.groups() else ""
            return module, function.format(own.replace(".", "_").replace("-", "_")), True
    return *PLACEHOLDER, False


def _modules(case: Case, names: ModuleNames) -> tuple[str, list[list[str]]]:
    return "parallelism.module_fqns_per_model_part", names.of(case.candidate.layers)


def _order(case: Case) -> str:
    """Return a comment on the file of the schedule, if there is one."""
    if case.degrees.pp == 1 or own_name(case) is not None:
        return ""
    return f"# schedule: {csv_command(case)}\n"


def _wrapped(line: str) -> str:
    """Return an assignment with one part of a list of lists per line."""
    head, _, value = line.partition(" = ")
    if not value.startswith("[["):
        return line
    parts = value[1:-1].split("], ")
    rows = ",\n".join(f"        {part.rstrip(']')}]" for part in parts)
    return f"{head} = [\n{rows},\n    ]"


def _toml(value: Any) -> str:
    """Return a value in TOML, which is JSON for all that there is here."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        rows = ",\n".join(f"  {json.dumps(one)}" for one in value)
        return f"[\n{rows},\n]"
    return json.dumps(value)
