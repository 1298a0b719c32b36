"""Options as text."""

from __future__ import annotations

from typing import Any

import pytest

from debubble.core.errors import ParameterError
from debubble.interchange.files import ANY_TYPE, parse_options
from debubble.schedules.registry import Option, find

KNOWN = {
    "size": Option("size", "int | None", None),
    "share": Option("share", "float", 1.0),
    "fast": Option("fast", "bool", False),
    "word": Option("word", "<class 'str'>", "a"),
    "any": Option("any", ANY_TYPE, None),
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("size=4", 4),
        ("size = 4 ", 4),
        ("size=none", None),
        ("share=0.5", 0.5),
        ("fast=yes", True),
        ("fast=False", False),
        ("word=a=b", "a=b"),
        ("any=3", 3),
        ("any=3.5", 3.5),
        ("any=true", True),
        ("any=three", "three"),
    ],
)
def test_values_have_the_type_the_schedule_declares(pair: str, value: Any) -> None:
    (found,) = parse_options([pair], KNOWN).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["size"], "--option 'size'; write KEY=VALUE, such as group_size=4"),
        (["=3"], "--option '=3'; write KEY=VALUE, such as group_size=4"),
        (["sizes=3"], "unknown option 'sizes'; did you mean 'size'?"),
        (["size=3", "size=4"], "option 'size' is given twice; give it once"),
        (["size=3.5"], "option size is '3.5'; give a value of type int"),
        (["share=nan"], "option share is 'nan'; give a value of type float"),
        (["fast=2"], "option fast is '2'; give a value of type bool"),
    ],
)
def test_other_texts_are_refused(pairs: list[str], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_options(pairs, KNOWN)
    assert str(caught.value) == message


def test_hyphens_in_names_are_underscores() -> None:
    known = {option.name: option for option in find("interleaved-1f1b").options}
    assert parse_options(["group-size=4"], known) == {"group_size": 4}


def test_values_from_files_are_compared_with_the_declared_type() -> None:
    assert KNOWN["size"].fits(3)
    assert KNOWN["size"].fits(None)
    assert KNOWN["share"].fits(3)
    assert not KNOWN["size"].fits(3.5)
    assert not KNOWN["size"].fits(True)
    assert not KNOWN["fast"].fits("a")
