"""Inputs on which a reader once failed: see ``tests/fuzz``, which found them.

A row of ``found.jsonl`` has the reader, the input as text, and what is said of it; null where it is
read, in part at least.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from debubble.core.errors import DebubbleError
from tests.fuzz import seeds
from tests.fuzz.readers import READERS, accepts

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("found.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("row", [pytest.param(row, id=row["reader"]) for row in ROWS])
def test_input(row: dict[str, Any]) -> None:
    reader, content = READERS[row["reader"]], row["input"].encode()
    if row["says"] is None:
        assert accepts(reader, content) in (True, False)
        return
    with pytest.raises(DebubbleError) as caught:
        reader.read(content)
    assert row["says"] in str(caught.value)


DAMAGE = {
    "a table without its columns": 'ALTER TABLE results RENAME COLUMN "error" TO "x"',
    "a spec that is no JSON": "UPDATE about SET value = 'x' WHERE name = 'spec'",
    "a spec that is no spec": "UPDATE about SET value = '[1]' WHERE name = 'spec'",
    "a spec whose parts are none": (
        """UPDATE about SET value = '{"command": "simulate", "grid": 1}' WHERE name = 'spec'"""
    ),
    "no spec": "DELETE FROM about WHERE name = 'spec'",
    "options that are no list": "UPDATE about SET value = '3' WHERE name = 'options'",
    "options of a point that are no JSON": "UPDATE results SET options = 'x'",
    "text that is none": "UPDATE results SET error = CAST(x'ff' AS TEXT)",
    "nothing that says what it is": "DROP TABLE about",
    "no view": "DROP VIEW sweep",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["sweep-sqlite", "sweep-resumed"])
def test_results_of_a_sweep(name: str, damage: str) -> None:
    file = sqlite3.connect(":memory:")
    file.deserialize(seeds.sweeps()[0])
    file.execute(DAMAGE[damage])
    file.commit()
    content = file.serialize()
    file.close()
    # Where points are computed again, some of it is mended.
    assert accepts(READERS[name], content) in (True, False)


@pytest.mark.parametrize("name", ["sweep-sqlite", "sweep-resumed", "trace-nsys"])
def test_a_schema_that_is_no_text(name: str) -> None:
    content = READERS[name].seeds()[0].replace(b"CREATE TABLE", b"CREATE \xd7ABLE", 1)
    with pytest.raises(DebubbleError):
        READERS[name].read(content)
