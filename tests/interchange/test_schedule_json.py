"""JSON schedule files: what is written is read back, and everything else is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.errors import FormatError
from debubble.interchange.schedule_json import from_json, to_json
from tests.pairs import each_family
from tests.strategies import carrying, made, recomputing


def data(**changes: Any) -> str:
    """The text of a file with some keys changed; an ellipsis removes a key."""
    base = db.make("1f1b", ranks=2, microbatches=3).to_dict() | changes
    return json.dumps({key: value for key, value in base.items() if value is not ...})


@each_family
@settings(max_examples=6)
@given(data=st.data())
def test_every_registered_schedule_reads_back_equal(entry: Any, data: st.DataObject) -> None:
    schedule = data.draw(carrying(data.draw(made(entry, ranks=6, microbatches=16, chunks=3))))
    if data.draw(st.booleans()):
        schedule = data.draw(recomputing(schedule))
    again = from_json(to_json(schedule), "x.json")
    assert again == schedule
    assert again.name == schedule.name
    assert again.options == dict(schedule.options)
    assert again.weight_versions == schedule.weight_versions
    assert again.placement == schedule.placement


def test_a_file_has_one_line_per_program() -> None:
    lines = to_json(db.make("1f1b", ranks=3, microbatches=2)).splitlines()
    assert '    ["2F0", "2B0", "2F1", "2B1"]' in lines


def test_cut_and_exchange_are_written_where_there_are_any() -> None:
    plain = json.loads(to_json(db.make("seq1f1b", ranks=2, microbatches=1, slices=2)))
    assert plain["slices"] == 2
    assert "cut" not in plain
    assert "exchange" not in plain
    assert plain["programs"][0] == ["0F0.0", "0F0.1", "0B0.1", "0B0.0"]
    costs = db.Costs(attention=0.5)
    uneven = db.make("terapipe", ranks=2, microbatches=1, slices=2, costs=costs)
    assert json.loads(to_json(uneven))["cut"] == list(uneven.cut)
    assert from_json(to_json(uneven), "x.json") == uneven
    evened = db.make("slimpipe", ranks=2, microbatches=1)
    assert json.loads(to_json(evened))["exchange"] is True


def test_optional_keys_have_defaults() -> None:
    text = data(name=..., iterations=..., slices=..., sync=..., weight_versions=..., options=...)
    schedule = from_json(text, "x.json")
    assert (schedule.name, schedule.sync, schedule.iterations) == ("custom", "global", 1)
    assert schedule == db.make("1f1b", ranks=2, microbatches=3)


def test_numbers_of_numpy_in_options_are_written() -> None:
    schedule = db.make("interleaved-1f1b", ranks=2, microbatches=4, group_size=np.int64(2))
    assert from_json(to_json(schedule), "x.json").options["group_size"] == 2


def test_options_that_json_cannot_say_are_refused_when_written() -> None:
    placement = db.Placement.linear(1)
    schedule = db.Schedule.from_text([["0F0", "0B0"]], placement, 1, options={"costs": object()})
    with pytest.raises(FormatError, match="options of 'custom' cannot be written: object is not"):
        to_json(schedule)


def test_orders_that_cannot_run_are_read() -> None:
    schedule = from_json(data(programs=[["0B0", "0F0"], []]), "x.json")
    assert schedule.rows() == [["0B0", "0F0"], []]
    assert not db.check(schedule).ok


REFUSED = {
    "[]": 'x.json: not a schedule file; it has no "format": "debubble-schedule"',
    "": "x.json: line 1, column 1: not JSON: Expecting value",
    '{"format": ': "x.json: line 1, column 12: not JSON: Expecting value",
    '{"a": 1, "a": 2}': "x.json: the key 'a' is there twice; remove one",
    '{"a": NaN}': "x.json: NaN is not a number; numbers in files are finite",
    '{"a": -Infinity}': "x.json: -Infinity is not a number; numbers in files are finite",
    '{"a": 1e999}': "x.json: 1e999 is not a number; numbers in files are finite",
    '{"a": 1' + "0" * 5000 + "}": "x.json: a number has too many digits",
    "[" * 200_000: "x.json: lists or mappings are nested too deeply",
    data(format="trace"): "x.json: format is 'trace'; it must be 'debubble-schedule'",
    data(version=2): "x.json: version is 2; this debubble reads version 1",
    data(version=True): "x.json: version is true; this debubble reads version 1",
    data(version=...): "x.json: 'version' is missing; this is version 1",
    data(programs=...): "x.json: 'programs' is missing",
    data(rank=2): "x.json: unknown key 'rank'; did you mean 'ranks'?",
    data(ranks=3): "x.json: programs is 2 programs; give one list for each of 3 ranks",
    data(ranks=True): "x.json: ranks is true; give a whole number from 1 to 4,096",
    data(microbatches="3"): "x.json: microbatches is '3'; give a whole number from 1 to 16,777,216",
    data(microbatches=10**12): (
        "x.json: microbatches is 1000000000000; give a whole number from 1 to 16,777,216"
    ),
    data(microbatches=1 << 24): (
        "x.json: 12 actions cannot be a schedule of 2 stages and 16,777,216 microbatches; "
        "correct the numbers"
    ),
    data(iterations=0): "x.json: iterations is 0; give a whole number from 1 to 65,536",
    data(slices=1.0): "x.json: slices is 1.0; give a whole number from 1 to 1,024",
    data(sync="none"): "x.json: sync is 'none'; use one of global, local, post-validation",
    data(sync=["global"]): "x.json: sync is a list; use one of global, local, post-validation",
    data(recompute_after="F"): "x.json: recompute_after is 'F'; use one of forward, gradient",
    data(slices=2): (
        "x.json: rank 0, action 0: '0F0' is not an action; write <stage><kind>"
        "<microbatch>.<slice>: 3F0.1"
    ),
    data(cut=0.5): "x.json: cut is 0.5; give a list with a share per slice",
    data(cut=[True]): "x.json: cut[0] is true; give a share up to 1",
    data(cut=[0.5]): "x.json: the shares of the cut add up to 0.5; make it 1",
    data(cut=[0.5, 0.5]): "x.json: cut has 2 shares for 1 slices; give one for each",
    data(
        cut=[10**400]
    ): "x.json: cut[0] is a number with more than 60 digits; give a share up to 1",
    data(exchange=1): "x.json: exchange is 1; use true or false",
    data(name="a\nb"): r"x.json: name is 'a\nb'; give text on one line",
    data(name="\ud800"): r"x.json: name is '\ud800'; give text on one line",
    data(name="a" * 201): "x.json: name has 201 characters; the limit is 200",
    data(programs=[["0F0"], "x"]): "x.json: programs[1] is 'x'; give a list of text",
    data(programs=[["0F0"], [3]]): (
        "x.json: rank 1, action 0: 3 is not an action; write text such as 3F0"
    ),
    data(programs=[["0F0", "0F0xyz"], []]): (
        "x.json: rank 0, action 1: '0F0xyz' is not an action; write <stage><kind><microbatch>: 3F0"
    ),
    data(programs=[[], ["1" * 1_000_000]]): (
        f"x.json: rank 1, action 0: '{'1' * 60}…' is not an action; "
        "write <stage><kind><microbatch>: 3F0"
    ),
    data(programs=[["\x1b[2J"], []]): (
        r"x.json: rank 0, action 0: '\x1b[2J' is not an action; "
        "write <stage><kind><microbatch>: 3F0"
    ),
    data(programs=[["1048576F0"], []]): (
        "x.json: rank 0, action 0: '1048576F0' is out of range; stages go to 1048575, "
        "microbatches to 2147483647"
    ),
    data(placement=[0, 1]): 'x.json: placement is a list; give {"table": [[0, 1]]}',
    data(placement={"tabel": [[0, 1]]}): (
        "x.json: placement: unknown key 'tabel'; did you mean 'table'?"
    ),
    data(placement={}): "x.json: placement: 'table' is missing",
    data(placement={"table": []}): (
        "x.json: placement.table is an empty list; give one list, with the rank of every stage, "
        "for each copy of the model"
    ),
    data(placement={"table": [[]]}): (
        "x.json: placement.table[0] is an empty list; give the rank of every stage"
    ),
    data(placement={"table": [[0, 2]]}): (
        "x.json: placement.table[0][1] is 2; ranks go from 0 to 1"
    ),
    data(placement={"table": [[0, False]]}): (
        "x.json: placement.table[0][1] is false; ranks go from 0 to 1"
    ),
    data(placement={"table": [[0, 1], [1]]}): (
        "x.json: placement.table: every copy of a placement needs the same number of stages"
    ),
    data(options=[1]): "x.json: options is a list; give a mapping with up to 64 entries",
    data(options={"a": {}}): "x.json: options.a is a mapping; give numbers, text or a list of them",
    data(options={"a": [[1]]}): "x.json: options.a is a list; give numbers, text or a list of them",
    data(options={"a": 1 << 60}): (
        "x.json: options.a is 1152921504606846976; give numbers, text or a list of them"
    ),
    data(options={"a": "\x00"}): r"x.json: options.a is '\x00'; give text on one line",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        from_json(text, "x.json")
    assert str(caught.value) == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(key=st.sampled_from(sorted(json.loads(data()))), value=JSON)
def test_any_value_of_any_key_is_read_or_refused(key: str, value: Any) -> None:
    with suppress(FormatError):
        schedule = from_json(data(**{key: value}), "x.json")
        assert from_json(to_json(schedule), "x.json") == schedule


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(FormatError):
        from_json(text, "x.json")


def test_files_are_read_and_written_through_the_public_names(tmp_path: Path) -> None:
    schedule = db.make("dualpipe", ranks=4, microbatches=8, iterations=2)
    schedule.save(tmp_path / "x.json")
    assert db.load(tmp_path / "x.json") == schedule
