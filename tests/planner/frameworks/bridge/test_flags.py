"""Our recipes for Megatron-Bridge: fields that its classes have, with Megatron-LM's values."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from debubble.planner.case import Case
from debubble.planner.frameworks.bridge.flags import PRECISIONS
from debubble.planner.frameworks.table import FRAMEWORKS, flags
from tests import wheels
from tests.planner import megatron
from tests.planner.frameworks.megatron.test_flags import GOOD as MEGATRONS

VERSION = "0.3.1"
BRIDGE = "megatron/bridge"
CORE = "megatron/core"

SECTIONS = {
    "model": [
        ("bridge", "models/gpt_provider.py", "GPTModelProvider"),
        ("core", "transformer/transformer_config.py", "TransformerConfig"),
        ("core", "model_parallel_config.py", "ModelParallelConfig"),
    ],
    "ddp": [("core", "distributed/distributed_data_parallel_config.py",
             "DistributedDataParallelConfig")],
    "optimizer": [("core", "optimizer/optimizer_config.py", "OptimizerConfig")],
    "train": [("bridge", "training/config.py", "TrainingConfig")],
    "rng": [("bridge", "training/config.py", "RNGConfig")],
    "checkpoint": [("bridge", "training/config.py", "CheckpointConfig")],
    "mixed_precision": [("bridge", "training/mixed_precision.py", "MixedPrecisionConfig")],
    "tokenizer": [("bridge", "training/tokenizers/config.py", "TokenizerConfig")],
    "dataset": [],
}  # fmt: skip
"""Classes whose fields a section has; those of the data set have a constructor of their own."""


GOOD = [one for one in MEGATRONS if one.training.weights != "fp4"]


def fields(path: Path, name: str) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        line.target.id
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }  # fmt: skip


@pytest.mark.slow
def test_fields_are_those_of_its_classes(request: pytest.FixtureRequest) -> None:
    folder = wheels.folder_of(request, "bridge")
    own = ("--python-version", "3.12", "--only-binary", ":all:")
    roots = {
        "bridge": wheels.fetch(folder, "megatron-bridge", VERSION, *own) / BRIDGE,
        "core": megatron.fetch(wheels.folder_of(request, "megatron")) / CORE,
    }
    known = {
        section: set().union(*(fields(roots[root] / path, name) for root, path, name in rows))
        for section, rows in SECTIONS.items()
    }
    for one in GOOD:
        text = FRAMEWORKS["bridge"].files[".py"](one)
        ast.parse(text)
        found = re.findall(r"^    cfg\.(\w+)\.(\w+) = ", text, re.MULTILINE)
        assert {section for section, _ in found} <= known.keys()
        for section, name in found:
            assert section == "dataset" or name in known[section], (section, name)
    recipes = (roots["bridge"] / "training/mixed_precision.py").read_text(encoding="utf-8")
    assert all(f"def {name}(" in recipes for name in MIXED)


MIXED = PRECISIONS.values()
"""Names of mixed precisions in our recipes."""


@pytest.mark.parametrize("one", GOOD)
def test_the_file_has_the_settings_and_the_stages_of_the_plan(one: Case) -> None:
    text = FRAMEWORKS["bridge"].files[".py"](one)
    assert all(f"    {line}" in text.splitlines() for line in flags(one, "bridge").splitlines())
    values = dict(re.findall(r"cfg\.(?:model|train|ddp)\.(\w+) = (.+)", text))
    d = one.degrees
    assert int(values["tensor_model_parallel_size"]) == d.tp
    assert int(values["pipeline_model_parallel_size"]) == d.pp
    assert int(values["micro_batch_size"]) == one.candidate.microbatch_size
    if d.chunks > 1 and "pipeline_model_parallel_layout" not in values:
        assert int(values["virtual_pipeline_model_parallel_size"]) == d.chunks
    assert values["use_distributed_optimizer"] == str(one.candidate.zero > 0)
