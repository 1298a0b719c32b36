from pathlib import Path

import pytest

from debubble.core.errors import FormatError, ParameterError
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.hardware.gpus import GPUS

ASKED = (
    "a100-40gb", "a100-80gb", "h100", "h200", "h800", "h20", "a800", "v100", "l40s", "b200",
    "b300", "gb200", "gb300", "rtx-pro-6000", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x",
)  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_gpus_are_found_by_short_name_in_any_case(name: str) -> None:
    assert find_gpu(name.upper()).name == name


def test_an_unknown_gpu_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match=r"unknown GPU 'h10'.*h100"):
        find_gpu("h10")


def test_a_file_changes_a_known_gpu(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("base: h100\nnic: 25e9\nnode: 4\nmemory: 72 GB\n")
    gpu = find_gpu(str(path))
    assert (gpu.name, gpu.nic, gpu.node, gpu.memory) == ("slow", 25e9, 4, 72e9)
    assert gpu.bf16 == GPUS["h100"].bf16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: h100\nnik: 1", "unknown key 'nik'.*nic"),
        ("base: h10", "unknown GPU 'h10'.*h100"),
        ("base: [1]", "unknown GPU"),
        ("base: h100\nnic: fast", "nic: 'fast'; give a positive number"),
        ("base: h100\nnic: -1", "nic: -1"),
        ("base: h100\nmemory: 80 GX", "memory: '80 GX'; give a size such as 80GB"),
        ("base: h100\nmemory: -1", "memory: -1; give a size such as 80GB"),
        ("base: h100\nnode: 2.5", "node: 2.5; give a whole number"),
        ("base: h100\nattention: 3", "attention: 3"),
        ("nic: 1", "missing"),
        ("- 1", "a GPU is a mapping"),
    ],
)
def test_a_file_that_describes_no_gpu_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        find_gpu(str(path))


def test_a_cluster_has_gpus() -> None:
    assert Cluster(GPUS["h100"], 8).gpu.memory == pytest.approx(85e9, rel=0.001)
    with pytest.raises(ParameterError, match="gpus is 0"):
        Cluster(GPUS["h100"], 0)


def test_lower_precision_is_faster_where_the_gpu_has_it() -> None:
    b200, a100 = GPUS["b200"], GPUS["a100-80gb"]
    assert b200.peak("bf16") < b200.peak("fp8") < b200.peak("fp4")
    assert a100.peak("fp8") == a100.peak("bf16")
