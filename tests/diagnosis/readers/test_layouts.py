"""Rows that differ in their numbers alone, read as columns, and one by one."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random

import pytest

from debubble.diagnosis.readers.layouts import Number, decoded, layouts, numbered


def some_number(random: Random) -> str:
    """A number as writers have it, also one that lies between two floats or has many digits."""
    sort = random.randrange(4)
    if sort == 0:
        return repr(random.random() * 10 ** random.randint(-5, 9))
    if sort == 1:
        return str(random.randrange(10 ** random.randint(1, 19)))
    if sort == 2:
        halves = (2 * random.randrange(1 << 26) + 1) / 2 ** random.randint(0, 20)
        return repr(halves + 2 ** random.randint(30, 52))
    digits = "".join(random.choice("0123456789") for _ in range(random.randint(1, 14)))
    return f"{random.randrange(10**9)}.{digits}"


def test_numbers_are_those_of_json() -> None:
    random = Random(1)
    rows = [
        json.dumps({"name": f"{random.randrange(9)}F{random.randrange(99)}"})[:-1]
        + ', "ts": [' + ", ".join(random.choice(["", "-"]) + some_number(random) for _ in "123")
        + "]}"
        for _ in range(500)
    ]  # fmt: skip
    found, odd = layouts("\n".join(rows).encode(), lambda text: text.split(b"\n"))
    seen = set(odd)
    for layout in found:
        template = decoded(layout.text)
        assert template["name"] == "1F2"
        named = layout.rows.runs([1, 2]).tolist()
        times = layout.rows.numbers(template["ts"]).tolist()
        for at, name, row in zip(layout.at.tolist(), named, times, strict=True):
            wanted = json.loads(rows[at], parse_int=float)
            assert wanted == {"name": "{}F{}".format(*name), "ts": row}
            seen.add(at)
    assert seen == set(range(len(rows)))


@pytest.mark.parametrize(
    "zero", ["1790857026123456789", "1790857026.25", "-3.5", "0.1234567890123"]
)
def test_differences_of_long_numbers_are_exact(zero: str) -> None:
    random = Random(2)
    near = [Decimal(zero) + random.randrange(10**9) for _ in range(50)]
    rows = [f"{each:f}" for each in near] + [some_number(random) for _ in range(200)]
    text = "\n".join(rows).encode()
    found, _ = layouts(text, lambda text: text.split(b"\n"), strict=False)
    for layout in found:
        times = layout.rows.numbers([Number.of(numbered(layout.text).decode())], Decimal(zero))
        wanted = [float(Decimal(rows[at]) - Decimal(zero)) for at in layout.at.tolist()]
        assert times[:, 0].tolist() == wanted
