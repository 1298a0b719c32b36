import csv
from collections.abc import Mapping
from pathlib import Path

import pytest
from published_rows import run_rows

from debubble.core.errors import FormatError
from debubble.planner.cost.published_efficiencies import Factors
from tests.planner.rows import ROW


def written(path: Path, *changes: Mapping[str, str], extra: tuple[str, ...] = ()) -> str:
    file = path / "rows.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*ROW, *extra])
        writer.writeheader()
        writer.writerows(ROW | change for change in changes)
    return str(file)


def test_every_row_is_predicted_beside_its_measurement(tmp_path: Path) -> None:
    [first, second] = run_rows(written(tmp_path, {}, {"precision": "fp8", "step_s": "20"}))
    assert (first["row"], second["row"]) == (0, 1)
    assert first["measured"] == 14.66
    assert first["error"] == pytest.approx(first["step_time"] / 14.66 - 1)
    assert abs(first["error"]) < 0.05
    assert first["memory"] > 20e9
    assert second["step_time"] < first["step_time"]
    assert first["skipped"] is None


def test_a_marked_row_calibrates_its_gpu_and_degree(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"step_s": "20", "calibrate": "yes"}, {"step_s": "20", "gpus": "128", "dp": "4",
        "global_batch": "256"}, {"tp": "8", "dp": "1"}, extra=("calibrate",),
    )  # fmt: skip
    [marked, same, other] = run_rows(path, Factors())
    assert marked["calibrated"]
    assert marked["error"] == pytest.approx(0, abs=1e-5)
    assert same["error"] == pytest.approx(0, abs=0.01)
    assert not same["calibrated"]
    unmarked = run_rows(written(tmp_path, {"tp": "8", "dp": "1"}), Factors())[0]
    assert other["step_time"] > 1.2 * unmarked["step_time"]


def test_rows_say_how_sure_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, {}, {"micro_batch": "8"}, {"pp": "1", "vp": "1", "dp": "8"})
    fits, large, unpiped = run_rows(path)
    assert 0 < fits["step_time_error"] < 0.2 * fits["step_time"]
    assert abs(fits["step_time"] - fits["measured"]) < fits["step_time_error"]
    assert unpiped["step_time_error"] / unpiped["step_time"] > fits["step_time_error"] / 14.66
    assert (fits["fits"], large["fits"], unpiped["fits"]) == ("yes", "no", "no")
    assert fits["memory_error"] == pytest.approx(0.1 * fits["memory"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gpu": "TPUv4"}, "unknown GPU"),
        ({"layers": "x"}, "layers 'x' is no whole number"),
        ({"tp": "1e400"}, "tp"),
        ({"schedule": "magic", "vp": "1"}, "magic"),
        ({"global_batch": "2", "pp": "4"}, ""),
        ({"pp": "80", "gpus": "1280", "vp": "5"}, ""),
        ({"precision": "\x00"}, ""),
        ({"gpus": "1" * 40}, ""),
    ],
)
def test_odd_rows_are_skipped_with_the_reason(
    tmp_path: Path, change: dict[str, str], why: str
) -> None:
    [found] = run_rows(written(tmp_path, change))
    assert found["skipped"] is None or why in found["skipped"]
    assert (found["skipped"] is None) == (found["step_time"] is not None)
    if why:
        assert found["skipped"]


def test_a_row_without_a_measurement_is_predicted(tmp_path: Path) -> None:
    [found] = run_rows(written(tmp_path, {"step_s": ""}))
    assert found["step_time"] > 0
    assert found["measured"] is found["error"] is None


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="no column model, gpu"):
        run_rows(str(path))


def test_short_and_long_lines_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    names = ",".join(ROW)
    values = ",".join(ROW.values())
    path.write_text(f"{names}\n{values},more,and more\nonly,two\n\n")
    found = run_rows(str(path))
    assert [row["skipped"] is None for row in found] == [True, False]
