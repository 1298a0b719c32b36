"""Files that anybody may have damaged: read in part or refused, never anything else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made, made_kineto, made_megatron, made_nsys
from tests.diagnosis.readers.test_debubble_trace import save
from tests.diagnosis.readers.test_megatron_timers import log
from tests.diagnosis.readers.test_sums import ARGUMENTS as SIZES
from tests.diagnosis.readers.test_sums import DEEPSPEED, TIMES

CASES = 25
VALUES = [
    b"-1", b"1e999", b"NaN", b"null", b'""', b"[]", b"{}", b"9" * 30, b"true", b'"x"', b"0.5",
    b"\x00", b"\xff", b"1e308", b"2147483648", b"-0.0", b"18446744073709551616",
]  # fmt: skip

RUN = made.run("1f1b", microbatches=3)
WRITERS: dict[str, Callable[[Path], None]] = {
    "table": lambda folder: made.write_table(RUN, folder / "run.csv"),
    "primus": lambda folder: made.write_primus(RUN, folder, numbered=True),
    "ndtimeline": lambda folder: made.write_ndtimeline(RUN, folder / "run.json"),
    "victarry": lambda folder: made.write_victarry(made.run("1f1b", steps=1), folder),
    "kineto": lambda folder: made_kineto.write(RUN, folder, suffix=".json"),
    "old kineto": lambda folder: made_kineto.write(RUN, folder, suffix=".json", old=True),
    "nsys": lambda folder: made_nsys.write(RUN, folder / "run.sqlite", [0, 1], base=10**18),
    "debubble": lambda folder: save(made.run("1f1b", steps=1), folder / "run.json"),
    "megatron": lambda folder: made.write(folder / "run.log", log()),
    "unnamed kineto": lambda folder: made_megatron.write_unnamed_kineto(RUN, folder),
    "unnamed nsys": lambda folder: made_nsys.write(
        RUN, folder / "run.sqlite", [0, 1], base=10**18, names="operators"
    ),
    "megatron-app": lambda folder: made_megatron.write_megatron_app(RUN, folder / "run.json"),
    "otlp": lambda folder: made_megatron.write_spans(RUN, folder, "otlp"),
    "console spans": lambda folder: made_megatron.write_spans(RUN, folder, "console"),
    "jaeger": lambda folder: made_megatron.write_spans(RUN, folder, "jaeger"),
    "tensorboard": lambda folder: made_megatron.write_tensorboard(folder / "events", TIMES, SIZES),
    "deepspeed": lambda folder: made.write(folder / "run.log", DEEPSPEED),
}


def damaged(content: bytes, source: random.Random) -> bytes:
    """A file with a part lost, doubled or replaced."""
    at = source.randrange(len(content))
    how = source.random()
    if how < 0.2:
        return content[:at] + bytes([source.randrange(256)]) + content[at + 1 :]
    if how < 0.3:
        return content[:at] + content[at + source.choice([1, 10, 1000]) :]
    if how < 0.4:
        return content[:at]
    if how < 0.5:
        return content[:at] + content[max(at - 500, 0) :]
    values = list(re.finditer(rb'-?\d+(\.\d+)?|"[^"]*"', content[at : at + 3000]))
    if not values:
        return content
    value = source.choice(values)
    return content[: at + value.start()] + source.choice(VALUES) + content[at + value.end() :]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source = random.Random(name)
    refused = 0
    for _ in range(CASES):
        for path, content in files.items():
            path.write_bytes(content)
        path = source.choice(sorted(files))
        path.write_bytes(damaged(damaged(path.read_bytes(), source) or b"x", source))
        try:
            found = read(tmp_path)
        except FormatError:
            refused += 1
        else:
            assert found.ranks >= 1
    assert refused < CASES


def test_what_is_refused_says_what_could_not_be_used(tmp_path: Path) -> None:
    """Names of threads stand at the end, which is cut off here."""
    run = made.run("1f1b", ranks=4, microbatches=8, copies=2)
    path = tmp_path / "timeline.json.gz"
    made.write_ndtimeline(run, path, names_last=True)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(FormatError, match="1 × files whose compressed data ends early"):
        read(path)


def test_a_file_that_ends_within_an_event_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=3)
    made_kineto.write(run, tmp_path, suffix=".json")
    path = sorted(tmp_path.iterdir())[0]
    text = path.read_text()
    path.write_text(text[: text.rindex('"ts"')])
    found = read(tmp_path)
    assert found.left_out["files that end within an event (read as far as they go)"] == 1
    assert len(found.steps) >= 2
