"""Megatron-LM's timer log."""

from __future__ import annotations

from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read

ARGUMENTS = """------------------------ arguments ------------------------
  data_parallel_size .............................. 2
  global_batch_size ............................... 32
  micro_batch_size ................................ 2
  pipeline_model_parallel_size .................... 2
  virtual_pipeline_model_parallel_size ............ {chunks}
  world_size ...................................... 4
-------------------- end of arguments ---------------------
"""


def log(chunks: str = "None", option: str = "all") -> str:
    """A log of three iterations with eight microbatches, the second a little slower."""
    text = ARGUMENTS.format(chunks=chunks)
    for iteration, slower in ((1, 1.0), (2, 1.5), (3, 1.0)):
        text += (
            f" [2026-01-01 00:00:00] iteration {iteration:8d}/      10 | elapsed time per "
            "iteration (ms): 1000.0 |\n"
        )
        times = {
            "forward-backward": [900.0] * 4,
            "forward-compute": [80.0 * slower, 88.0 * slower, 160.0 * slower, 152.0 * slower],
            "backward-compute": [160.0, 160.0, 240.0, 240.0],
        }
        if option == "all":
            text += "times across ranks (ms):\n"
            for name, each in times.items():
                text += f"  {name}:\n"
                text += "".join(f"     rank {r:2d}: {time:.2f}\n" for r, time in enumerate(each))
        else:
            text += "(min, max) time across ranks (ms):\n"
            for name, each in times.items():
                title = f"{name} ".ljust(48, ".")
                text += f"    {title}: ({min(each):.2f}, {max(each):.2f})\n"
    return text


def test_costs_of_stages(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log())
    found = read(tmp_path)
    assert (found.format, found.ranks, len(found.actions)) == ("megatron-timers", 2, 0)
    assert found.costs is not None
    assert (found.costs.F, found.costs.B) == ((11.0, 20.0), (20.0, 30.0))
    assert found.costs.time_unit == "ms"
    assert found.left_out == {"sums of timers other than forward-compute and backward-compute": 3}
    assert found.taken_for["rank"] == "rank // 2, as Megatron places pipelines"


def test_chunks_share_the_sum(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log(chunks="2"))
    costs = read(tmp_path).costs
    assert costs is not None
    assert costs.F == (5.5, 10.0, 5.5, 10.0)


def test_least_and_most_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log(option="minmax"))
    costs = read(tmp_path).costs
    assert costs is not None
    assert (costs.F, costs.B) == (20.0, 30.0)


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(log()[len(ARGUMENTS) :])
    with pytest.raises(FormatError, match="no 'pipeline_model_parallel_size' in the log; keep"):
        read(path)
    path.write_text(ARGUMENTS)
    with pytest.raises(FormatError, match="log with --timing-log-level 2"):
        read(path)
    path.write_text(log().replace("............................... 32", ".......... 3"))
    with pytest.raises(FormatError, match="0 microbatches by the list of arguments"):
        read(path)
