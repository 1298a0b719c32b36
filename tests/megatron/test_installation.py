"""What ``install`` puts in place of Megatron's functions, and what is refused before a step."""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import wheels

pytest.importorskip("torch")

from torch import nn

import debubble as db
import debubble.megatron as dm
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.placement import Placement
from debubble.lowering.sharding import add_sharding
from debubble.megatron import internals
from debubble.megatron.internals import ALONE, KEYWORDS, REPLACED, SCHEDULES, USED
from debubble.megatron.refused import REFUSED, refuse
from debubble.megatron.source import ScheduleSource, forwards
from debubble.megatron.split import choose_split
from debubble.megatron.stage import ByMicrobatch
from debubble.torch.errors import RunError
from tests.megatron import fake
from tests.planner.megatron import OF_ANOTHER_PYTHON

RELEASES = "0.15.0", "0.15.3", "0.16.0", "0.16.1", "0.17.1", "0.18.2", "0.19.2"

MADE = db.make("1f1b", ranks=2, microbatches=4)

SIZES = {"num_microbatches": 4, "seq_length": 8, "micro_batch_size": 1}


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    dm.uninstall()


def config(**options: Any) -> SimpleNamespace:
    """A TransformerConfig as far as it is asked."""
    given = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": None}
    return SimpleNamespace(**given | options)


def test_scripts_that_ask_for_the_function_get_ours() -> None:
    with fake.megatron() as schedules:
        ask = schedules.get_forward_backward_func  # imported by name before
        own = ask(4), ask(4, 2)
        dm.install("1f1b")
        ours = ask(4), ask(4, 2)
        dm.install("zb-h1")
        assert {id(one) for one in own}.isdisjoint(map(id, (*ours, ask(4), ask(4, 2))))
        assert ask(4) is not ours[0]
        dm.uninstall()
        assert (ask(4), ask(4, 2)) == own
        dm.uninstall()


def test_what_another_tool_puts_there_since_then_stays() -> None:
    with fake.megatron() as schedules:
        dm.install("1f1b")
        setattr(schedules, REPLACED[0], another := object())
        dm.uninstall()
        assert getattr(schedules, REPLACED[0]) is another


@contextmanager
def placed_on(rank: int) -> Iterator[Callable[[], Any]]:
    """A job of two ranks and two chunks; yields how a script asks for the function."""
    with fake.megatron() as schedules:
        vars(internals.parallel_state()).update(
            model_parallel_is_initialized=lambda: True,
            get_pipeline_model_parallel_rank=lambda: rank,
            get_pipeline_model_parallel_world_size=lambda: 2,
            get_virtual_pipeline_model_parallel_world_size=lambda: 2,
        )
        yield lambda: schedules.get_forward_backward_func(2, 2)


def chunk(*ends: bool) -> SimpleNamespace:
    """A model chunk that says if it has the embedding, and the output layer."""
    return SimpleNamespace(pre_process=ends[0], post_process=ends[1])


V_OF = {0: [chunk(True, False), chunk(False, True)], 1: [chunk(False, False)] * 2}
LOOP_OF = {
    0: [chunk(True, False), chunk(False, False)], 1: [chunk(False, False), chunk(False, True)],
}  # fmt: skip
"""The chunks of each rank."""


@pytest.mark.parametrize("rank", [0, 1])
def test_megatron_does_not_run_models_in_other_placements(rank: int) -> None:
    with placed_on(rank) as ask:
        dm.place_model("zb-v")
        with pytest.raises(ParameterError, match=r"\(V\); call dm\.install .*_backward_func"):
            ask()(model=V_OF[rank])
        dm.uninstall()
        with pytest.raises(ParameterError, match=r"build the model anew, or call dm\.install"):
            ask()(model=V_OF[rank])
        dm.install("1f1b")
        dm.uninstall()
        with pytest.raises(ParameterError, match="build the model anew"):
            ask()(model=V_OF[rank])
        assert ask()(model=LOOP_OF[rank]) == REPLACED[0]


def test_megatron_runs_models_that_are_placed_as_its_own() -> None:
    with placed_on(0) as ask:
        own = ask()
        dm.place_model("interleaved-zb")
        assert ask()(model=LOOP_OF[0]) == REPLACED[0]
        dm.uninstall()
        assert ask() is own


def test_a_job_with_one_pipeline_rank_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with fake.megatron() as schedules, caplog.at_level(logging.WARNING):
        dm.install("1f1b")
        run = schedules.get_forward_backward_func(1)
        assert [run(model=None), run(model=None)] == [ALONE, ALONE]
    [said] = caplog.messages
    assert "one pipeline rank" in said
    assert "pipeline_model_parallel_size" in said


def test_the_callable_has_the_keywords_of_the_installed_release() -> None:
    with fake.megatron(USED | {f"{SCHEDULES}.{REPLACED[0]}": (*KEYWORDS, "brand_new")}):
        ours = dm.forward_backward_func("1f1b")
        assert list(inspect.signature(ours).parameters) == [*KEYWORDS, "brand_new"]
        with pytest.raises(TypeError, match="unexpected"):
            ours(forward_step=None)
        with pytest.raises(ParameterError, match=r"brand_new= is not known.*0\.99\.0"):
            ours(forward_step_func=print, data_iterator=None, model=None, brand_new=1, **SIZES)


def test_megatron_that_is_missing_is_said() -> None:
    with fake.megatron() as schedules:
        import sys

        del sys.modules[schedules.__name__]
        with pytest.raises(DebubbleError, match=r"pip install 'debubble\[megatron\]'"):
            dm.install("1f1b")


@pytest.mark.parametrize("name", USED)
def test_a_release_without_a_name_is_refused(name: str) -> None:
    used = {one: wanted for one, wanted in USED.items() if one != name}
    looks_up = "" if "get_forward_backward_func" in name else fake.LOOKS_UP
    with (
        fake.megatron(used, looks_up),
        pytest.raises(DebubbleError, match=rf"0\.99\.0: megatron\.core\.{name} is gone") as raised,
    ):
        dm.install("1f1b")
    assert internals.KNOWN in str(raised.value)


def test_a_release_with_other_parameters_is_refused() -> None:
    changed = {f"{SCHEDULES}.forward_step": USED[f"{SCHEDULES}.forward_step"][:-1]}
    with (
        fake.megatron(USED | changed),
        pytest.raises(DebubbleError, match="forward_step has no parameter 'is_last_stage'"),
    ):
        dm.install("1f1b")


def test_a_release_that_keeps_its_functions_elsewhere_is_refused() -> None:
    elsewhere = "TABLE = {}\ndef get_forward_backward_func():\n    return TABLE['1f1b']"
    with (
        fake.megatron(looks_up=elsewhere),
        pytest.raises(DebubbleError, match="no longer looks up"),
    ):
        dm.install("1f1b")


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_releases_have_what_is_used(request: pytest.FixtureRequest, version: str) -> None:
    folder = wheels.folder_of(request, "megatron")
    core = wheels.fetch(folder, "megatron-core", version, *OF_ANOTHER_PYTHON) / "megatron/core"
    lost: dict[str, set[str]] = {}
    for name, wanted in USED.items():
        path, _, attribute = name.rpartition(".")
        there = ast.parse((core / f"{path.replace('.', '/')}.py").read_text(encoding="utf-8")).body
        [found] = [
            node for node in there
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == attribute
        ]  # fmt: skip
        if isinstance(found, ast.FunctionDef):
            lost[name] = set(wanted) - {
                one.arg for one in (*found.args.args, *found.args.kwonlyargs)
            }
        if attribute == "get_forward_backward_func":
            used = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
            lost[name] = set(REPLACED) - used
    assert not any(lost.values()), lost


def test_slips_are_refused_when_they_are_made() -> None:
    with fake.megatron():
        with pytest.raises(ParameterError, match="did you mean 'fuse'"):
            dm.install("1f1b", split="fuze")
        with pytest.raises(DebubbleError, match="1f1b"):
            dm.install("1f1bb")


OF_SPLITS = {
    "recompute_granularity": None, "gradient_accumulation_fusion": False,
    "no_sync_func": None, "grad_sync_func": None,
}  # fmt: skip
"""Options of a model that can be split."""

TRIGGERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "overlap_moe_expert_parallel_comm": ("1f1b", {"overlap_moe_expert_parallel_comm": True}),
    "hybrid_context_parallel": ("1f1b", {"hybrid_context_parallel": True}),
    "CUDA graphs": ("1f1b", {"cuda_graph_impl": "local"}),
    "num_microbatches_with_partial_activation_checkpoints": (
        "1f1b", {"num_microbatches_with_partial_activation_checkpoints": 1},
    ),
    "fine_grained_activation_offloading": ("1f1b", {"fine_grained_activation_offloading": True}),
    "moe_paged_stash": ("1f1b", {"moe_paged_stash": True}),
    "overlap_dispatch_backward_with_experts_wgrad": (
        "1f1b", {"overlap_dispatch_backward_with_experts_wgrad": True},
    ),
    "several copies of the model": ("dualpipe", {}),
    "slices of a microbatch": ("seq1f1b", {}),
    "several versions of the weights": ("pipedream", {}),
    "a sharded output layer": ("vocab-1", {}),
    "recomputes as actions": (
        db.Schedule.from_text(
            [["0F0", "0R0", "0B0"], ["1F0", "1B0"]], Placement.loop(2, 1), 1, "with R"
        ), {},
    ),
    "offloads as actions": ("pipeoffload-full", {"virtual_pipeline_model_parallel_size": 2}),
    "collectives as actions": (add_sharding(MADE), {}),
    "carries to stages that are no neighbors": (replace(MADE, carries=((0, 1),)), {}),
}  # fmt: skip
"""By what is refused: a schedule and a configuration that have it."""


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.what)
def test_what_is_not_covered_is_refused_with_a_way_out(row: Any) -> None:
    schedule, options = TRIGGERS[row.what]
    with pytest.raises(ParameterError) as raised:
        dm.check(config(**options), schedule)
    name, *lines = str(raised.value).splitlines()
    assert getattr(schedule, "name", schedule) in name
    assert lines == [f"{row.what}: {row.reason}; {row.instead}"]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-zb", "looped-bfs"])
def test_the_rest_is_covered(name: str) -> None:
    chunks = None if name in ("1f1b", "zb-h1") else 2
    assert dm.check(config(virtual_pipeline_model_parallel_size=chunks), name) is None


@pytest.mark.parametrize(
    ("name", "what"), [("dualpipe", "several copies"), ("pipedream", "several versions")]
)
def test_what_no_number_of_chunks_helps_is_said_first(name: str, what: str) -> None:
    with pytest.raises(ParameterError, match=f"^'{name}' does not run .*\n{what}"):
        dm.check(config(virtual_pipeline_model_parallel_size=2), name)


def test_two_copies_are_refused_before_chunks_are_looked_at() -> None:
    """A rank has a stage of each copy, and one chunk."""
    with pytest.raises(ParameterError, match=r"'dualpipe' does not run .*\nseveral copies"):
        ScheduleSource("dualpipe").schedule(2, 1, 4)


def test_everything_that_is_refused_is_said_at_once() -> None:
    with pytest.raises(ParameterError) as raised:
        dm.check(config(moe_paged_stash=True, cuda_graph_impl="local"), "seq1f1b")
    assert len(str(raised.value).splitlines()) == 4


def test_layers_that_queue_weight_gradients_need_w_in_the_sequence_of_i() -> None:
    rows = [["0F0", "0F1", "0I0", "0I1", "0W1", "0W0"]]
    schedule = db.Schedule.from_text(rows, Placement.loop(1, 1), 2)
    refuse(config(), schedule)
    with pytest.raises(ParameterError, match=r"W of stage 0 in another .*'fuse'"):
        refuse(config(), schedule, delays=True)


REASONS: dict[str, dict[str, Any]] = {
    "recompute_granularity is 'full'": {"recompute_granularity": "full"},
    "gradient_accumulation_fusion": {"gradient_accumulation_fusion": True},
    "defer_embedding_wgrad_compute": {"defer_embedding_wgrad_compute": True},
    "multi-token prediction": {"mtp_num_layers": 1},
    "Linear reduces gradients after whole backwards": {"no_sync_func": nullcontext},
}
"""Why autograd's graph is not run in two parts, and the options that say so."""


@pytest.mark.parametrize("reason", REASONS)
def test_backwards_that_cannot_be_split_are_fused_or_refused(reason: str) -> None:
    chunk, options = nn.Linear(2, 2), OF_SPLITS | REASONS[reason]
    found = choose_split(chunk, config(**options), "auto")
    assert (found.fuses, found.delays) == (True, False)
    assert reason in found.why
    with pytest.raises(ParameterError, match=f"{reason}.*split='fuse'"):
        choose_split(chunk, config(**options), "autograd")


def test_ways_to_split() -> None:
    chunk, plain = nn.Linear(2, 2), config(**OF_SPLITS)
    assert choose_split(chunk, plain, "auto") == (None, False, "")
    assert choose_split(chunk, plain, "autograd") == (False, False, "")
    assert choose_split(chunk, plain, "fuse") == (True, False, "")
    with pytest.raises(ParameterError, match=r"config\.delay_wgrad_compute = True"):
        choose_split(chunk, plain, "te")
    chunk.backward_dw = chunk.wgrad_store = lambda: None  # type: ignore[assignment]
    chunk.wgrad_store.delay_wgrad_compute = lambda: True  # type: ignore[union-attr]
    assert choose_split(chunk, plain, "auto") == choose_split(chunk, plain, "te")
    assert choose_split(chunk, plain, "te") == (False, True, "")
    with pytest.raises(ParameterError, match="delay their weight gradients themselves"):
        choose_split(chunk, plain, "autograd")


@pytest.mark.parametrize(
    ("given", "sizes", "said"),
    [
        (MADE, (2, 1, 6), "4 microbatches and this step 6.*1f1b"),
        (MADE, (4, 1, 4), "2 ranks"),
        ("1f1b", (2, 2, 4), "1 of the model's stages on a rank.* has 2; leave out virtual"),
        ("zb-v", (2, 1, 4), "2 of the model's.*virtual_pipeline_model_parallel_size=2"),
    ],
)  # fmt: skip
def test_a_schedule_of_other_sizes_is_refused(given: Any, sizes: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ScheduleSource(given).schedule(*sizes)


def test_sources_are_those_of_pipelines(tmp_path: Path) -> None:
    made = db.make("zb-h1", ranks=2, microbatches=4)
    made.save(tmp_path / "best.csv")
    for given in (made, "zb-h1", str(tmp_path / "best.csv"), tmp_path / "best.csv",
                  SimpleNamespace(schedule=made)):  # fmt: skip
        assert ScheduleSource(given).schedule(2, 1, 4) == made


@pytest.mark.parametrize("microbatches", [1, 7, 20])
@pytest.mark.parametrize(
    "placement", [Placement.loop(3, 1), Placement.loop(3, 2), Placement.v(3), Placement.wave(2, 4)]
)
def test_evaluation_runs_any_number_of_microbatches(
    placement: Placement, microbatches: int
) -> None:
    assert db.check(forwards(placement, microbatches)).ok


def test_microbatches_get_their_own_data_in_any_sequence() -> None:
    data = ByMicrobatch(iter("abcd"))
    found = []
    for microbatch in (2, 0, 3, 1):
        data.turn_to(microbatch)
        found.append(next(data))
    assert found == list("cadb")
    data.turn_to(0)
    next(data)
    with pytest.raises(RunError, match="several batches"):
        next(data)
