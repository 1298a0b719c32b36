from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble import Action, FormatError, Kind
from debubble.core.actions import (
    MAX_MICROBATCHES,
    MAX_STAGES,
    cells,
    kinds_of,
    microbatches_of,
    pack,
    pairs_of,
    parse_cell,
    stages_of,
    unpack,
)
from debubble.core.sequence import alternate, as_kind, backward, forward, overlap, sequence, show

actions = st.builds(
    Action, st.integers(0, MAX_STAGES - 1), st.sampled_from(Kind), st.integers(0, 2**31 - 1)
)


@given(actions)
def test_text_and_packed_form_read_back(action: Action) -> None:
    assert Action.parse(str(action)) == action
    packed = pack(action.kind, action.stage, action.microbatch)
    assert unpack(packed[0]) == action
    assert (stages_of(packed)[0], kinds_of(packed)[0], microbatches_of(packed)[0]) == (
        action.stage,
        action.kind,
        action.microbatch,
    )


@given(st.lists(actions, max_size=6), st.booleans())
def test_cells_read_back(program: list[Action], paired: bool) -> None:
    packed = np.concatenate(
        [np.empty(0, np.int64), *(pack(a.kind, a.stage, a.microbatch) for a in program)]
    )
    if paired and len(packed) % 2 == 0:
        packed = overlap(packed[::2], packed[1::2])
    back = [code for cell in cells(packed) for code in parse_cell(cell)]
    assert back == packed.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "", "F", "0F", "F0", "0X0", "0F0xyz", "-1F0", "0F-1", "0.5F0", "0F0 1F0", "0f0", "٣F0",
        "(0F0)OVERLAP_F_B", "(0F0;1B0)", "(0F0;)OVERLAP_F_B", "(0F0;1B0)OVERLAP",
        f"{MAX_STAGES}F0", f"0F{MAX_MICROBATCHES}", "9" * 40 + "F0",
    ],
)  # fmt: skip
def test_other_text_is_refused_and_named(text: str) -> None:
    with pytest.raises(FormatError, match=r"is not a|out of range"):
        parse_cell(text)


def test_pair_reads_as_in_pytorch() -> None:
    first, second = parse_cell("(0F3;3B1)OVERLAP_F_B")
    assert (unpack(first), unpack(second)) == (Action(0, Kind.F, 3), Action(3, Kind.B, 1))
    assert pairs_of(np.array([first, second])).tolist() == [1, 2]


def test_combinators_write_orders_as_they_read() -> None:
    assert show(alternate(forward(0, [2, 3]), backward(1, [0, 1]))) == "0F2 1B0 0F3 1B1"
    assert show(overlap(forward(0, [5]), backward(3, [4]))) == "(0F5;3B4)OVERLAP_F_B"
    assert show(as_kind(backward([1, 2], 7), Kind.W)) == "1W7 2W7"


def test_slices_stand_behind_their_microbatch() -> None:
    program = sequence(forward(0, [0, 5]), pack(Kind.OPT, 0, 3))
    assert cells(program, 4) == ["0F0.0", "0F1.1", "0OPT3"]
    assert [code for cell in cells(program, 4) for code in parse_cell(cell, 4)] == program.tolist()
    paired = overlap(forward(0, [5]), backward(3, [2]))
    assert cells(paired, 4) == ["(0F1.1;3B0.2)OVERLAP_F_B"]
    assert parse_cell("(0F1.1;3B0.2)OVERLAP_F_B", 4) == paired.tolist()


@pytest.mark.parametrize(
    ("text", "slices", "message"),
    [
        ("0F0", 2, r"'0F0' is not an action; write <stage><kind><microbatch>\.<slice>: 3F0\.1"),
        ("0F0.0", 1, r"'0F0\.0' is not an action; write <stage><kind><microbatch>: 3F0"),
        ("0F0.2", 2, r"'0F0\.2' is out of range; slices go to 1"),
        ("0F0.", 2, "is not an action"),
        ("0OPT0.0", 2, "is not an action"),
        ("0F1073741824.0", 2, "microbatches to 1073741823"),
    ],
)
def test_slices_are_read_strictly(text: str, slices: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_cell(text, slices)
