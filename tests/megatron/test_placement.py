"""Models of megatron-core in the placements of our schedules, against those in its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import wheels

pytest.importorskip("torch")

from tests.megatron import gpt

pytestmark = pytest.mark.slow

NEWEST = gpt.RELEASES[-1]

EVERYTHING = {
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    "bucket_size": 1000,
}  # fmt: skip

JOBS = {
    "experts, mean over tokens": gpt.Job(chunks=2, experts=4, per_token=True, ddp={}),
    "multi-token prediction, tied": gpt.Job(chunks=2, mtp=1, tied=True, ddp={}),
    "optimizer, tied": gpt.Job(chunks=2, tied=True, ddp=EVERYTHING, optimizer=True),
    "uneven": gpt.Job(
        layers=6, chunks=2, more={
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
    ),
    "layout, recompute": gpt.Job(
        layers=5, chunks=2, recompute=True, more={"pipeline_model_parallel_layout": "Ett|t|t|tL"}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return wheels.folder_of(request, "megatron")


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ranks of one start see."""
    wheel, saved = gpt.fetch(folder, NEWEST), tmp_path_factory.mktemp("saved")

    def work(rank: int) -> dict[str, Any]:
        import debubble.megatron as dm

        steps = {}
        for name, job in JOBS.items():
            wanted = gpt.Training(job).step()
            dm.install("dualpipe-v" if job.experts else "zb-v")
            steps[name] = gpt.apart(gpt.Training(job).step(), wanted)
            dm.uninstall()
        return {
            "steps": steps,
            "lengths": _of_other_lengths(dm),
            "evaluation": _evaluation(dm),
            "checkpoints": _checkpoints(dm, saved),
            "copy": _copy_of_the_embedding(dm),
            "late": _late(dm),
            "others": _others(dm),
            "lost": _lost(dm),
            "alone": _alone(dm),
            "answers": _answers(dm),
        }

    return {"ranks": gpt.in_ranks_of(wheel, 2, work)}


def _of_other_lengths(dm: Any) -> Any:
    # Megatron's own interleaved function mixes up its messages of shapes on gloo.
    job = gpt.Job(chunks=2, lengths=(6, 12, 9))
    wanted = gpt.Training(replace(job, chunks=1)).step()
    dm.install("zb-v")
    found = gpt.Training(job).step()
    dm.uninstall()
    return gpt.apart(found, wanted)


def _evaluation(dm: Any) -> Any:
    job = gpt.Job(chunks=2)
    wanted = [
        gpt.Training(job).step(forward_only=True, collect_non_loss_data=data)
        for data in (False, True)
    ]
    dm.install("zb-v")
    found = [
        gpt.Training(job).step(forward_only=True, collect_non_loss_data=data)
        for data in (False, True)
    ]
    dm.uninstall()
    return [gpt.apart(*both) for both in zip(found, wanted, strict=True)]


def _checkpoints(dm: Any, folder: Path) -> list[float]:
    """Differences of weights that went from one placement to another."""
    job = gpt.Job(chunks=2, tied=True)
    apart = []
    for at, (writer, reader) in enumerate([("interleaved-1f1b", "zb-v"), ("zb-v", "1f1b")]):
        place = folder / str(at)
        place.mkdir(exist_ok=True)
        dm.install(writer)
        first = gpt.Training(job)
        first.save(place)
        wanted = first.weights()
        dm.install(reader)
        second = gpt.Training(job if reader == "zb-v" else replace(job, chunks=1))
        for chunk in second.chunks:
            for weight in chunk.parameters():
                weight.data.zero_()
        second.load(place)
        got = second.weights()
        assert got.keys() == wanted.keys()
        apart.append(max(float((got[name] - wanted[name]).abs().max()) for name in wanted))
    dm.uninstall()
    return apart


def _copy_of_the_embedding(dm: Any) -> list[bool]:
    job = gpt.Job(chunks=2, tied=True, drawn=False)
    dm.install("zb-v")
    chunks = gpt.Training(job).chunks
    dm.uninstall()
    weights = [chunk.shared_embedding_or_output_weight() for chunk in chunks]
    return [weight is not None and bool((weight == weights[0]).all()) for weight in weights]


def _late(dm: Any) -> str:
    training = gpt.Training(gpt.Job(chunks=2))
    dm.install("zb-v")
    try:
        training.step()
    except ValueError as error:
        return str(error)
    finally:
        dm.uninstall()
    return ""


def _others(dm: Any) -> list[str]:
    """What Megatron's own function says of a V, with its placement and after."""
    said = []
    dm.place_model("zb-v")
    training = gpt.Training(gpt.Job(chunks=2))
    for change in (lambda: None, dm.uninstall):
        change()
        with pytest.raises(ValueError, match="Megatron") as raised:
            training.step()
        said.append(str(raised.value))
    return said


def _lost(dm: Any) -> str:
    from debubble.megatron import placement

    names = placement.BY_STAGE
    placement.BY_STAGE = (*names, "parallel_state.renamed")
    dm.install("zb-v")
    try:
        gpt.Training(gpt.Job(chunks=2)).step()
    except ValueError as error:
        return str(error)
    finally:
        dm.uninstall()
        placement.BY_STAGE = names
    return ""


def _alone(dm: Any) -> Any:
    job = gpt.Job(chunks=2)
    wanted = gpt.Training(job).step()
    dm.place_model("v-half")
    found = gpt.Training(job).step(dm.forward_backward_func("v-half"))
    dm.uninstall()
    return gpt.apart(found, wanted)


def _answers(dm: Any) -> list[Any]:
    """What a function says that a script imported, before ours, with ours, and after."""
    import inspect

    from megatron.core.pipeline_parallel.utils import is_vp_last_stage as asked

    seen = []
    for change in (lambda: None, lambda: dm.install("zb-v"), dm.uninstall):
        change()
        seen.append((asked(1, 2), [*inspect.signature(asked).parameters]))
    return seen


@pytest.mark.parametrize("job", list(JOBS))
def test_v_trains_as_the_loop_does(found: dict[str, Any], job: str) -> None:
    # The norm of all gradients, by which an optimizer clips them, is a sum in the sequence of each
    # rank's weights: others on a V than in a loop.
    most = 1e-6 if JOBS[job].optimizer else 0.0
    for rank in found["ranks"]:
        apart, where = rank["steps"][job]
        assert apart <= most, where


def test_sequences_differ_in_length(found: dict[str, Any]) -> None:
    assert found["ranks"][0]["lengths"] == (0.0, "")


def test_v_evaluates_as_the_loop_does(found: dict[str, Any]) -> None:
    assert found["ranks"][0]["evaluation"] == [(0.0, "")] * 2


def test_checkpoints_move_between_placements(found: dict[str, Any]) -> None:
    assert found["ranks"][0]["checkpoints"] == [0.0, 0.0]


def test_output_layer_begins_as_copy_of_the_embedding(found: dict[str, Any]) -> None:
    assert found["ranks"][0]["copy"] == [True, True]
    assert found["ranks"][1]["copy"] == [False, False]


def test_model_that_was_built_before_is_refused(found: dict[str, Any]) -> None:
    for rank in found["ranks"]:
        assert "before the model is built" in rank["late"]


def test_megatron_refuses_what_it_cannot_run(found: dict[str, Any]) -> None:
    for rank in found["ranks"]:
        used, left = rank["others"]
        assert "call dm.install with the schedule" in used
        assert "build the model anew" in left


def test_release_without_a_name_is_refused(found: dict[str, Any]) -> None:
    for rank in found["ranks"]:
        assert "no parallel_state.renamed, which 'zb-v' needs" in rank["lost"]


def test_script_may_place_the_model_alone(found: dict[str, Any]) -> None:
    assert found["ranks"][0]["alone"] == (0.0, "")


def test_functions_that_were_imported_before_answer_too(found: dict[str, Any]) -> None:
    names = ["vp_stage", "vp_size"]
    first, last = (
        [(said, names) for said in answers] for answers in ([True] * 3, [True, False, True])
    )
    assert [rank["answers"] for rank in found["ranks"]] == [first, last]
