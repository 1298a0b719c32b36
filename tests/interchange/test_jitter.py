"""Files of measured times."""

from __future__ import annotations

from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.interchange.jitter import read_times


def test_numbers_apart_by_anything(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("# ms\n1.5, 2 3e0\n\n4,5 # the last\n")
    assert read_times(str(path)) == [1.5, 2, 3, 4, 5]
    path.write_text("")
    assert read_times(str(path)) == []


def test_what_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("1\n2, fast\n")
    with pytest.raises(FormatError, match=r"times.csv, line 2: 'fast' is no time; give numbers"):
        read_times(str(path))
    with pytest.raises(FormatError, match="there is no file"):
        read_times(str(tmp_path / "none"))
