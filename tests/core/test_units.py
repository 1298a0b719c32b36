"""Numbers with units: one way to write them everywhere."""

import json

import pytest

import debubble as db
from debubble.core.errors import CostError
from debubble.core.units import amount, memory_scale, number, plain, time


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 bytes"),
        (1023, "bytes", "1,023 bytes"),
        (3_334_144, "bytes", "3.18 MiB"),
        (3_334_144, "B", "3.18 MiB"),
        (42 << 30, "Bytes", "42 GiB"),
        (1000, "MiB", "1,000 MiB"),
        (81_920, "MiB", "80 GiB"),
        (40_000, "MB", "40 GB"),
        (0.6, "GB", "0.6 GB"),
        (5000, "GB", "5 TB"),
        (1e9, "tokens", "1,000,000,000 tokens"),
        (12.5, "", "12.5"),
        (2.0**70, "bytes", "1,048,576 PiB"),
    ],
)
def test_amounts_of_memory_are_written_in_the_unit_that_reads_best(value, unit, text):
    assert amount(value, unit) == text


def test_one_unit_for_a_column():
    scale = memory_scale("bytes", 5 << 20)
    assert [scale.text(value) for value in (1 << 18, 5 << 20)] == ["0.25", "5"]


def test_times_and_plain_numbers():
    assert time(2356.835, "ms") == "2,356.84 ms"
    assert time(5.0, "") == "5"
    assert number(58.900000000000006) == "58.9"
    assert plain(58.900000000000006) == 58.9


def test_costs_know_their_units_but_do_not_differ_by_them():
    costs = db.Costs(F=1, activation=2, time_unit="ms", memory_unit="bytes")
    assert costs == db.Costs(F=1, activation=2)
    assert costs.activation_unit == "bytes"
    assert db.Costs(memory_unit="bytes").activation_unit == ""
    with pytest.raises(CostError, match="time_unit is 5; give the name of a unit"):
        db.Costs(time_unit=5)


def test_units_survive_a_cost_file(tmp_path):
    from debubble.interchange.cost_files import costs_data, load_costs

    costs = db.Costs(F=1, activation=2, time_unit="ms", memory_unit="MiB")
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs_data(costs)))
    read = load_costs(path).costs
    assert (read, read.time_unit, read.memory_unit) == (costs, "ms", "MiB")
