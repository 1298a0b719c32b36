"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from debubble.core.atomic_write import atomic_file, write_atomically


def fail(path: Path) -> None:
    with atomic_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for content in (b"one", b"two"):
        with atomic_file(path) as file:
            file.write(content)
            file.flush()
            assert not path.exists() or path.read_bytes() == b"one"
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", [False, True])
def test_what_ends_early_changes_nothing(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "x.csv"
    if there:
        path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        fail(path)
    assert [found.read_bytes() for found in tmp_path.iterdir()] == [b"before"] * there


def test_modes_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "x.csv", tmp_path / "link.csv"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to("x.csv")
    write_atomically(link, b"after")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"after")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    write_atomically(tmp_path / "new", b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    write_atomically("/dev/null", b"lost")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"said")
    assert os.read(reader, 10) == b"said"
    os.close(reader)


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        write_atomically(tmp_path / "nowhere" / "x.csv", b"")
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path, b"")
