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


PREFIXES = [
    "[default3]:", "[rank3]: ", "3: ", " 12: ", "[1,3]<stdout>:", "[pod/train-0/main] ",
    "(Worker pid=17, ip=10.0.0.1) ", "2026-03-28T14:14:10.123456789Z ", "[host3][rank7]: ",
    "\x1b[36m(pid=12)\x1b[0m ", "2026-11-26T23:15:01.123456Z stdout F ", "worker-0 | ",
    "2026-11-26 23:15:01,123 INFO train.py:12 | ",
]  # fmt: skip


@pytest.mark.parametrize("option", ["all", "minmax"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_lines_have_the_prefix_of_a_launcher(tmp_path: Path, prefix: str, option: str) -> None:
    """Lines of other ranks stand between those of the one that logs."""
    lines = [prefix + line for line in log(option=option).splitlines()]
    other = "[default0]:NCCL INFO Channel 00/0" if "default" in prefix else f"{prefix}NCCL INFO"
    if "default" in prefix:
        lines = [text for line in lines for text in (line, other)]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    costs = read(tmp_path).costs
    assert costs is not None
    wanted = {"all": ((11.0, 20.0), (20.0, 30.0)), "minmax": (20.0, 30.0)}
    found = costs.F, costs.B
    assert found == wanted[option]


def test_times_in_a_prefix_may_change_from_line_to_line(tmp_path: Path) -> None:
    """Ranks that log at once have the same prefix but for their number."""
    lines = [
        text for at, line in enumerate(log().splitlines()) for text in (
            f"2026-11-26 23:15:{at // 9:02d},{at:03d} [rank3] INFO train.py:12 | {line}",
            f"2026-11-26 23:15:{at // 9:02d},{at:03d} [rank0] INFO train.py:12 | loaded",
        )
    ]  # fmt: skip
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    costs = read(tmp_path).costs
    assert costs is not None
    assert (costs.F, costs.B) == ((11.0, 20.0), (20.0, 30.0))


@pytest.mark.parametrize("option", ["all", "minmax"])
def test_a_logger_may_write_its_prefix_once_a_message(tmp_path: Path, option: str) -> None:
    """Sums are one message of many lines, of which the first has the prefix."""
    text = log(option=option)
    for begin in (" [2026", "times across", "(min, max)"):
        text = text.replace(f"\n{begin}", f"\n2026-11-26 23:15:01,123 INFO: {begin}")
    (tmp_path / "train.log").write_text(text)
    costs = read(tmp_path).costs
    assert costs is not None
    backward = costs.B
    assert backward == (30.0 if option == "minmax" else (20.0, 30.0))


def test_a_log_behind_megabytes_of_other_lines(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("node-1: NCCL INFO Channel 00/0\n" * 70_000 + log())
    found = read(tmp_path)
    assert found.format == "megatron-timers"
    assert found.costs is not None
    assert found.costs.F == (11.0, 20.0)


def test_old_releases_write_one_line(tmp_path: Path) -> None:
    line = "time (ms) | forward-compute: 80.00 | backward-compute: 160.00 | optimizer: 5.00\n"
    (tmp_path / "train.log").write_text(ARGUMENTS.format(chunks="None") + line * 2)
    costs = read(tmp_path).costs
    assert costs is not None
    assert (costs.F, costs.B) == (10.0, 20.0)
    (tmp_path / "train.log").write_text(line)
    with pytest.raises(FormatError, match="sums of forward-compute and backward-compute, but no"):
        read(tmp_path)


def test_other_timers_are_named(tmp_path: Path) -> None:
    text = log().replace("forward-compute", "optimizer").replace("backward-compute", "all-grads")
    (tmp_path / "train.log").write_text(text)
    with pytest.raises(FormatError, match="backward-compute, but of all-grads, forward-backward"):
        read(tmp_path)
