"""Sums of timers outside of Megatron's log: TensorBoard's scalars and DeepSpeed's breakdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made_megatron

ARGUMENTS = {
    "pipeline_model_parallel_size": "4", "micro_batch_size": "2", "global_batch_size": "32",
    "data_parallel_size": "2", "virtual_pipeline_model_parallel_size": "None", "world_size": "8",
    "lr": "0.1",
}  # fmt: skip
TIMES = {
    "forward-compute-time": [0.080, 0.4, 0.088], "backward-compute-time": [0.16, 0.17, 0.16],
    "lm loss": [1.0, 2.0, 3.0],
}  # fmt: skip


def test_scalars_of_tensorboard(tmp_path: Path) -> None:
    path = tmp_path / "tb" / "events.out.tfevents.1790857026.node.1.0"
    made_megatron.write_tensorboard(path, TIMES, ARGUMENTS)
    found = read(tmp_path)
    assert (found.format, found.ranks, found.left_out) == ("tensorboard", 4, {})
    assert found.costs is not None
    assert pytest.approx((11.0, 20.0)) == (found.costs.F, found.costs.B)
    assert found.taken_for["step"] == "medians of 3 iterations"


def test_a_cut_file_of_tensorboard(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    made_megatron.write_tensorboard(path, TIMES, ARGUMENTS)
    path.write_bytes(path.read_bytes()[:-3])
    assert read(path).left_out == {
        "files that are no records of TensorBoard, or damaged (read as far as they go)": 1
    }


def test_what_tensorboard_lacks(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    made_megatron.write_tensorboard(path, {"lm loss": [1.0]}, ARGUMENTS)
    with pytest.raises(FormatError, match="--log-timers-to-tensorboard"):
        read(path)
    made_megatron.write_tensorboard(path, TIMES, {})
    with pytest.raises(FormatError, match="no 'pipeline_model_parallel_size' in the texts"):
        read(path)


DEEPSPEED = """[2026-08-25 02:58:04,341] [INFO] [config.py:1008:print]   steps_per_print ........ 10
stage=0 layers=6
stage=1 layers=7
[2026-08-25 02:58:04,341] [INFO] [engine.py:88:__init__] CONFIG: micro_batches=8 micro_batch_size=1
steps: 10 loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601
[2026-08-25 02:58:04,341] [INFO] [logging.py:68:log_dist] [Rank 0] rank=0 time (ms) | \
pipe_send_output: 41.71 | pipe_recv_grad: 1725.64
[2026-08-25 02:58:13,587] [INFO] [logging.py:68:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001]
[2026-08-25 02:58:14,298] [INFO] [logging.py:68:log_dist] [Rank 0] rank=0 time (ms) | \
forward_microstep: 800.00 | backward_microstep: 1600.00 | step_microstep: 12.50
"""


def test_breakdown_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n" * 100_000 + DEEPSPEED)
    found = read(tmp_path)
    assert (found.format, found.ranks, found.missing) == ("deepspeed", 2, ((0, 1),))
    assert found.costs is not None
    assert (found.costs.F, found.costs.B) == (10.0, 20.0)
    assert found.taken_for["rank"] == "rank 0 alone logs; its times stand for all stages"


def test_breakdown_of_deepspeed_without_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(DEEPSPEED[DEEPSPEED.index("steps: 10") :])
    with pytest.raises(FormatError, match=r"rank 0 alone logs.*forward_microstep 800\.00 ms.*keep"):
        read(tmp_path)


def test_a_log_that_is_none_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("epoch 1: loss 2.5\n")
    with pytest.raises(FormatError, match="no line of DeepSpeed's timers") as error:
        read(tmp_path, format="deepspeed")
    assert "()" not in str(error.value)
