"""Flags of torchtitan, NeMo Automodel and Megatron-LM."""

from __future__ import annotations

from typing import Any

import pytest

import debubble as db
from debubble.interchange.launchers import automodel, megatron, torchtitan
from debubble.interchange.layouts import Layout, check_cut


@pytest.mark.parametrize(
    ("name", "chunks", "placing"),
    [
        ("1f1b", None, "PipelineScheduleSingle"),
        ("zb-h1", None, "PipelineScheduleSingle"),
        ("interleaved-1f1b", 3, "PipelineScheduleMulti"),
        ("gis-h", 2, "PipelineScheduleMulti"),
        ("zb-v", None, "ZBVZeroBubble"),
        ("dualpipe-v", None, "ZBVZeroBubble"),
    ],
)
def test_torchtitan_places_stages_by_a_schedules_name(
    name: str, chunks: int | None, placing: str
) -> None:
    schedule = db.make(name, ranks=4, microbatches=8, chunks=chunks)
    lines = torchtitan(schedule, "a/b.csv")
    assert f"--parallelism.pipeline_parallel_schedule={placing}" in lines
    assert "--parallelism.pipeline_parallel_schedule_csv=a/b.csv" in lines
    assert "--parallelism.pipeline_parallel_degree=4" in lines
    assert "--training.local_batch_size=8" in lines
    assert any("layers_per_stage" in line for line in lines) == (chunks == 3)
    lines = automodel(schedule, "a/b.csv")
    assert f"--distributed.pipeline.pp_schedule {placing}" in lines
    assert "--distributed.pipeline.pp_schedule_csv a/b.csv" in lines
    assert "--distributed.pp_size 4" in lines


def test_a_cut_comes_with_the_modules_of_every_stage() -> None:
    schedule = db.make("interleaved-1f1b", ranks=2, microbatches=4)
    cut = [1, 2, 1, 1]
    check_cut(schedule, cut)
    for lines in (torchtitan(schedule, "x.csv", cut), automodel(schedule, "x.csv", cut)):
        assert any('"layers.3"' in line or '"model.layers.3"' in line for line in lines)


@pytest.mark.slow
def test_the_placement_is_what_pytorch_makes_of_that_name() -> None:
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    for name, style in (("PipelineScheduleMulti", "loop"), ("ZBVZeroBubble", "v")):
        schedule = torch.get_schedule_class(name)
        v_like = (torch.ScheduleZBVZeroBubble, torch.ScheduleDualPipeV)
        assert ("v" if schedule in v_like else "loop") == style


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (db.make("dualpipe", ranks=4, microbatches=8), "2 copies of the model"),
        (
            db.Schedule.from_text([["0F0", "1F0", "1B0", "0B0"], ["2F0", "2B0"]],
                                  db.Placement(((0, 0, 1),)), 1),
            "its placement is 'explicit'",
        ),
    ],
)  # fmt: skip
def test_what_torchtitan_cannot_place_is_refused(schedule: db.Schedule, reason: str) -> None:
    with pytest.raises(db.ParameterError, match=reason):
        torchtitan(schedule, "x.csv")


def test_megatron_arguments_follow_from_the_order() -> None:
    def of(name: str, **options: Any) -> list[str]:
        made = db.make(name, ranks=4, microbatches=12, **options)
        # The name does not matter, and neither do options.
        plain = db.Schedule("mine", made.placement, 12, made.actions, made.offsets)
        return megatron(made if "group_size" in options else plain)[:-3]

    assert of("1f1b") == ["--pipeline-model-parallel-size 4"]
    virtual = "--num-virtual-stages-per-pipeline-rank"
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    size = "--pipeline-model-parallel-size 4"
    assert of("interleaved-1f1b", chunks=3) == [size, f"{virtual} 3", f"{group} 4"]
    assert of("interleaved-1f1b", group_size=6) == [size, f"{virtual} 2", f"{group} 6"]
    overlap = "--overlap-moe-expert-parallel-comm"
    assert of("interleaved-overlap") == [size, f"{virtual} 2", f"{group} 4", overlap]


def test_megatron_runs_other_orders_with_a_line_in_the_script() -> None:
    *lines, reason, line = megatron(
        db.make("zb-v", ranks=2, microbatches=4), layout=Layout((1, 2, 2, 1))
    )
    assert lines[1] == "--pipeline-model-parallel-layout 'Et|tt|tt|tL'"
    assert "before pretrain()" in reason
    assert line == '# import debubble.megatron as dm; dm.install("zb-v")'
    with pytest.raises(db.ParameterError, match="no schedule with the order of 'dualpipe'"):
        megatron(db.make("dualpipe", ranks=2, microbatches=4))


def test_megatron_takes_a_layout() -> None:
    schedule = db.make("interleaved-1f1b", ranks=2, microbatches=4)
    lines = megatron(schedule, layout=Layout((3, 4, 4, 3)))
    assert lines[1] == "--pipeline-model-parallel-layout 'Et*3|t*4|t*4|t*3L'"
    assert not any("num-virtual-stages" in line for line in lines)
    assert "--microbatch-group-size-per-virtual-pipeline-stage 2" in lines
