"""Our flags in torchtitan's own parser and functions: taken, and meant as we mean them."""

from __future__ import annotations

import ast
import dataclasses
import shlex
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from debubble.cli.app import app
from debubble.interchange.files import resolve
from debubble.interchange.launchers import placing_name
from debubble.interchange.layouts import TORCHTITAN
from debubble.interchange.torch_csv import from_csv
from debubble.planner.case import Case
from debubble.planner.frameworks.table import FRAMEWORKS, flags
from debubble.planner.frameworks.torch.flags import NAMES, csv_command, own_name
from debubble.planner.frameworks.torchtitan.flags import even_weights, split_lines
from debubble.planner.plannable import plannable
from debubble.schedules import registry
from tests import wheels
from tests.planner.cases import case, dense, latent, mixture, sampled

PARSER = {"tyro": "1.0.17", "docstring-parser": "0.18.0", "typeguard": "4.6.0"}
"""What reads its command line, and what that needs."""

GOOD: list[Case] = [
    case(dense(), tp=8, dp=4, recompute="full"),
    case(dense(), tp=4, cp=2, pp=4, b=2, m=8, zero=3),
    case(dense(), "interleaved-1f1b", tp=4, dp=2, pp=4, chunks=4, m=12, recompute="selective"),
    case(dense(30), "zb-v", tp=2, dp=2, pp=4, chunks=2, zero=2),
    case(dense(31), "interleaved-1f1b", pp=4, chunks=2),
    case(dense(), "dualpipe-v", pp=4, chunks=2, sequence_parallel=False, tp=2),
    case(dense(), "zb-h1", pp=4, layers=(0, 16, 16, 0), zero=0, dp=2),
    case(dense(), pp=4, layers=(5, 9, 10, 8)),
    case(dense(), pp=8, m=4),
    case(mixture(), tp=2, ep=8, dp=4, pp=2, recompute="selective"),
]


class Configurable:
    """The base of its configured parts, without what it logs."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        pass


@pytest.fixture(scope="module")
def theirs(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Its configs, its functions for pipelines, and its parser."""
    pytest.importorskip("torch", reason="torchtitan imports PyTorch")
    from tests.torch import torchtitan_wheel

    folder = wheels.folder_of(request, "torchtitan")
    content = torchtitan_wheel.fetch(folder)
    for name, version in PARSER.items():
        sys.path.append(str(wheels.fetch(folder, name, version)))
    configs, pipelines = torchtitan_wheel.load(content)
    import tyro

    sys.modules["torchtitan.config"].Configurable = Configurable  # type: ignore[attr-defined]
    checkpointing = torchtitan_wheel.run(content, "torchtitan.distributed.activation_checkpoint")
    config = dataclasses.make_dataclass(
        "Config",
        [
            (name, kind, dataclasses.field(default_factory=make))
            for name, kind, make in (
                ("training", configs.TrainingConfig, configs.TrainingConfig),
                ("parallelism", configs.ParallelismConfig, configs.ParallelismConfig),
                ("compile", configs.CompileConfig, configs.CompileConfig),
                ("activation_checkpoint", checkpointing.ActivationCheckpointingConfig,
                 checkpointing.SelectiveAC.Config),
            )
        ],
    )  # fmt: skip
    names = {"FullAC.Config": "full", "SelectiveAC.Config": "selective"}

    def read(text: str) -> SimpleNamespace:
        words = shlex.split(text, comments=True)
        found = tyro.cli(config, args=words, default=config())
        kind = type(found.activation_checkpoint)
        return SimpleNamespace(
            training=found.training, parallelism=found.parallelism, compile=found.compile,
            recompute=names.get(kind.__qualname__, "none"),
        )  # fmt: skip

    def made() -> Any:
        parts = {"training": configs.TrainingConfig(), "parallelism": configs.ParallelismConfig()}
        compiled = SimpleNamespace(enable=False, enable_async_tensor_parallel=False)
        return SimpleNamespace(**parts, compile=compiled, activation_checkpoint=None)

    return SimpleNamespace(read=read, pipelines=pipelines, made=made)


def text_of(one: Case) -> str:
    return flags(one, "torchtitan")


@pytest.mark.parametrize("one", GOOD)
def test_torchtitan_takes_our_flags_and_means_the_same(one: Case, theirs: SimpleNamespace) -> None:
    compare(one, theirs)


def test_it_takes_those_of_plans_that_a_search_meets(theirs: SimpleNamespace) -> None:
    for one in sampled("torchtitan", 8):
        compare(one, theirs)


def compare(one: Case, theirs: SimpleNamespace) -> None:
    """What torchtitan understood is what we said."""
    found = theirs.read(text_of(one))
    own, d, training, parallel = one.candidate, one.degrees, found.training, found.parallelism
    copies, sharded = parallel.data_parallel_replicate_degree, parallel.data_parallel_shard_degree
    assert (copies, sharded) == ((d.dp, 1) if own.zero == 0 else (1, d.dp))
    assert parallel.tensor_parallel_degree == d.tp
    assert parallel.context_parallel_degree == d.cp
    assert parallel.expert_parallel_degree == d.ep
    assert parallel.pipeline_parallel_degree == d.pp
    assert parallel.enable_sequence_parallel == (one.training.sequence_parallel or d.tp == 1)
    assert training.seq_len == one.training.sequence
    assert training.global_batch_size == one.training.batch
    assert found.recompute == own.recompute
    assert found.compile.enable == one.training.fused
    assert found.compile.enable_async_tensor_parallel == one.hides_tensors
    local = training.local_batch_size
    if d.pp == 1:
        assert local == own.microbatch_size
        assert training.global_batch_size == local * d.dp * own.microbatches
        return
    assert training.disable_cuda_graphs
    assert local == own.microbatch_size * own.microbatches
    assert parallel.pipeline_parallel_microbatch_size == own.microbatch_size
    assert parts(one, found, theirs) == TORCHTITAN.of(own.layers)
    mapping = theirs.pipelines._get_pp_rank_to_stage_indices_mapping
    for rank in range(d.pp):
        placed = mapping(rank, d.pp, parallel.pipeline_parallel_schedule, d.stages)
        assert tuple(sorted(placed)) == one.placement.stages_on(rank)
    assert bool(parallel.pipeline_parallel_schedule_csv) == (own_name(one) is None)


def parts(one: Case, found: SimpleNamespace, theirs: SimpleNamespace) -> Any:
    """The modules of every stage: what its own cut makes of the flags, or those in the file."""
    if "no flag takes the modules" in text_of(one):
        return configured(one, theirs).parallelism.module_fqns_per_model_part
    sizes = SimpleNamespace(pp=one.degrees.pp)
    config = SimpleNamespace(layers=[None] * len(one.model.layers))
    made = theirs.pipelines._get_pipeline_metadata(sizes, found.parallelism, config)
    return theirs.pipelines._generate_llm_fqn_per_model_part(*made)


def configured(one: Case, theirs: SimpleNamespace) -> Any:
    """The configuration that our Python file makes of its defaults."""
    text = FRAMEWORKS["torchtitan"].files[".py"](one)
    body = [line for line in text.splitlines() if not line.startswith(("from torchtitan", "#"))]
    names: dict[str, Any] = {
        "base": theirs.made, "Trainer": SimpleNamespace(Config=None),
        "FullAC": SimpleNamespace(Config=lambda: "full"),
        "SelectiveAC": SimpleNamespace(Config=lambda: "selective"),
    }  # fmt: skip
    exec("\n".join(body), names)
    return names["plan"]()


@pytest.mark.parametrize("one", GOOD)
def test_the_file_says_what_the_flags_say(one: Case, theirs: SimpleNamespace) -> None:
    own, read = configured(one, theirs), theirs.read(text_of(one))
    assert dataclasses.replace(own.training, steps=read.training.steps) == read.training
    parallel = own.parallelism
    assert (own.activation_checkpoint or "none") == read.recompute
    assert vars(own.compile).items() <= dataclasses.asdict(read.compile).items()
    if one.degrees.pp > 1:
        assert parallel.module_fqns_per_model_part == TORCHTITAN.of(one.candidate.layers)
    for spec in dataclasses.fields(parallel):
        # Layers are cut by a list here, and by numbers there.
        if "layers" not in spec.name and spec.name != "module_fqns_per_model_part":
            assert getattr(parallel, spec.name) == getattr(read.parallelism, spec.name), spec.name


@pytest.mark.slow
@pytest.mark.parametrize("one", [*GOOD, case(dense(), dp=2, pp=2, precision="fp8")])
def test_toml_has_the_keys_of_version_0_2(one: Case, request: pytest.FixtureRequest) -> None:
    wheel = wheels.fetch(wheels.folder_of(request, "torchtitan"), "torchtitan", "0.2.2")
    tree = ast.parse((wheel / "torchtitan/config/job_config.py").read_text(encoding="utf-8"))
    keys = {
        node.name.lower(): {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }  # type: ignore[union-attr]  # fmt: skip
    content = tomllib.loads(FRAMEWORKS["torchtitan"].files[".toml"](one))
    content.pop("quantize", None)
    for section, values in content.items():
        assert values.keys() <= keys[section.replace("_", "")], section
    own = content["parallelism"]
    assert own["pipeline_parallel_degree" if one.degrees.pp > 1 else "tensor_parallel_degree"]
    assert content["training"]["local_batch_size"] == one.candidate.microbatch_size * (
        one.candidate.microbatches if one.degrees.pp > 1 else 1
    )


@pytest.mark.parametrize(
    ("cut", "weights"),
    [
        ((8, 8, 8, 8), (0, 0)), ((7, 8, 8, 7), (1, 1)), ((8, 8, 8, 7), (1, 1)),
        ((5, 9, 9, 9), (4, 0)), ((8, 7, 8, 7), None), ((0, 16, 16, 0), (16, 16)),
        ((0, 9, 12, 11), None), ((5,), None),
    ],
)  # fmt: skip
def test_even_cuts_need_no_list(cut: tuple[int, ...], weights: tuple[int, int] | None) -> None:
    assert even_weights(cut) == weights
    lines = split_lines(cut, len(cut), 1)
    assert any("-o plan.py" in line for line in lines) == (weights is None)


def test_what_it_does_not_run_is_said() -> None:
    text = text_of(case(dense(), "hanayo", pp=4, chunks=4))
    assert "'hanayo' places its stages as 'wave', not in a loop or a V" in text
    assert "debubble export hanayo -p 4 -m 8 -v 4 --to torch-csv" in text
    assert all(line.startswith("#") for line in text.splitlines())
    assert "multi-token prediction with pp 4" in text_of(case(latent(), pp=4))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"gpipe", "1f1b"}))
def test_orders_that_go_by_name_are_those_of_pytorch(name: str) -> None:
    pytest.importorskip("torch", reason="makes PyTorch's orders")
    for ranks, number in ((2, 4), (2, 6), (4, 8), (4, 12)):
        theirs = resolve(f"torch:{NAMES[name]}", ranks=ranks, microbatches=number)
        assert theirs == registry.make(name, ranks=ranks, microbatches=number)


@pytest.mark.slow
def test_orders_of_all_plans_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command beside the flags writes what PyTorch reads."""
    monkeypatch.chdir(tmp_path)
    Path("costs.yaml").write_text("times: {F: 1, I: 1, W: 1}")
    for name in plannable():
        entry = registry.find(name)
        chunks = entry.chunks or 2
        one = case(dense(), name, pp=4, chunks=chunks, m=12)
        words = csv_command(one).partition("debubble ")[2].split()
        plain = placing_name(one.placement) is not None
        words += [] if plain else ["--no-torchtitan"]
        result = CliRunner().invoke(app, words, prog_name="debubble")
        assert result.exit_code == 0, (words, result.output)
        written = from_csv(Path("order.csv").read_text(), "order.csv", 12)
        assert written.placement.table == one.placement.table
