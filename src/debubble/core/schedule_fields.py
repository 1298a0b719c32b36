"""Fields of a schedule: check of the value, form in files, part in comparisons.

A field of :class:`debubble.core.schedule.Schedule` carries this as its metadata. The class checks,
compares and writes its fields by it, and files are read by it, so that a new field is one line.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import COST_NAMES, Costs
from debubble.core.embedding_and_head import first_stages
from debubble.core.errors import CostError, ParameterError, WrongValueError, did_you_mean
from debubble.core.former_names import RENAMED
from debubble.core.placement import Placement
from debubble.core.slicing import check_cut
from debubble.core.units import is_number, is_whole

VOCABULARIES = (0, 1, 2)
FROM_COSTS = ("order", "cut", "recomputes", "copies")
"""Parts of a schedule that may be computed from costs: which actions run when, where sequences are
cut into slices, and where recomputes and copies to the host stand."""

MAX_SLICES = 1 << 10
MAX_VERSIONS = 1 << 16
MAX_OPTIONS = 64
MAX_LABEL = 200
"""Characters of a name or a unit."""

MAX_NUMBER = 1 << 53
"""Numbers up to here are the same in every reader of JSON."""


class FieldSizes(NamedTuple):
    """Sizes of a schedule that the values of its fields are checked against."""

    ranks: int
    slices: int


Check = Callable[[str, Any, FieldSizes], Any]
"""Name, value, sizes: the value as the field has it, or a :class:`WrongValueError`."""


@dataclass(frozen=True)
class Saved:
    """A field that is part of a file."""

    check: Check
    """The one check of a value, in Python and in files."""
    in_file: Check | None = None
    """Further check of a value in a file."""
    write: Callable[[Any], Any] = lambda value: value
    """The value as plain data."""
    same: Callable[[Any], Any] | None = None
    """Value that equal schedules share, from the whole schedule; the default is the value. Fields
    with ``compare=False`` have no part in equality."""
    required: bool = False
    """Whether every file has it."""
    rare: bool = False
    """Whether a file leaves it out where it is empty."""
    default: Any = None
    """Value where a file leaves it out and the field itself has no default."""


def saved(check: Check, **more: Any) -> dict[str, Any]:
    """Return the metadata of a field that is part of a file, see :class:`Saved`."""
    return {"saved": Saved(check, **more)}


def checked(name: str, spec: Saved, value: Any, sizes: FieldSizes) -> Any:
    """Return a value given in Python as the field has it; a ParameterError if it cannot be."""
    try:
        return spec.check(name, value, sizes)
    except WrongValueError as error:
        raise ParameterError(error.text()) from None


def any_value(_name: str, value: Any, _sizes: FieldSizes) -> Any:
    """Accept any value: files allow less."""
    return value


def count(most: int | None = None) -> Check:
    """Return the check of a whole number from 1 up, in files to `most`."""

    def check(name: str, value: Any, _sizes: FieldSizes) -> int:
        if not is_whole(value):
            raise WrongValueError(name, value, "give a whole number")
        if value < 1:
            raise WrongValueError(name, value, "it is at least 1")
        if most is not None and value > most:
            raise WrongValueError(name, value, f"it goes up to {most:,}")
        return int(value)

    return check


def up_to(most: int) -> Check:
    """Return the check of a whole number from 1 to `most`, in files."""

    def check(name: str, value: Any, _sizes: FieldSizes) -> int:
        if type(value) is not int or not 1 <= value <= most:
            raise WrongValueError(name, value, f"give a whole number from 1 to {most:,}")
        return value

    return check


def one_of(known: Sequence[str] | Sequence[int], advice: str = "") -> Check:
    """Return the check of one of a few words or numbers, of one type."""

    def check(name: str, value: Any, _sizes: FieldSizes) -> Any:
        if not isinstance(value, type(known[0])) or isinstance(value, bool) or value not in known:
            raise WrongValueError(name, value, advice or f"use one of {', '.join(map(str, known))}")
        return value

    return check


def boolean(name: str, value: Any, _sizes: FieldSizes) -> bool:
    """Check that a value is a boolean."""
    if not isinstance(value, bool | np.bool_):
        raise WrongValueError(name, value, "use true or false")
    return bool(value)


def cut(name: str, value: Any, sizes: FieldSizes) -> tuple[float, ...]:
    """Check the share of the tokens of every slice, or none for equal slices."""
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise WrongValueError(name, value, "give a list with a share per slice")
    for part, share in enumerate(value):
        if not (is_number(share) or isinstance(share, np.number)) or share > 1:
            raise WrongValueError(f"{name}[{part}]", share, "give a share up to 1")
    return check_cut(list(value), sizes.slices)


def versions(name: str, value: Any, sizes: FieldSizes) -> int | tuple[int, ...]:
    """Check a number of weight versions, or one for each rank."""
    one = up_to(MAX_VERSIONS)
    if not isinstance(value, list | tuple):
        return int(one(name, int(value) if isinstance(value, np.integer) else value, sizes))
    if len(value) != sizes.ranks:
        form = f"{{path}} has {len(value)} numbers for {sizes.ranks} ranks; "
        raise WrongValueError(name, value, "give one number, or one per rank", form)
    return tuple(one(f"{name}[{rank}]", item, sizes) for rank, item in enumerate(value))


def as_list(value: int | tuple[int, ...]) -> int | list[int]:
    """Return the weight versions as plain data."""
    return value if isinstance(value, int) else list(value)


def targets(name: str, value: Any, sizes: FieldSizes) -> tuple[int | None, ...]:
    """Check offload targets: one per rank, or none where all are the host."""
    ranks = sizes.ranks
    if not isinstance(value, list | tuple):
        raise WrongValueError(name, value, f"give one rank or null for each of {ranks} ranks")
    if value and len(value) != ranks:
        form = f"{{path}} has {len(value)} entries for {ranks} ranks; "
        raise WrongValueError(name, value, "give one per rank, or none", form)
    for rank, target in enumerate(value):
        known = type(target) is int and 0 <= target < ranks and target != rank
        if target is not None and not known:
            advice = f"give another rank from 0 to {ranks - 1}, or None (null) for the host"
            raise WrongValueError(f"{name}[{rank}]", target, advice)
    return tuple(value)


def carries(name: str, value: Any, _sizes: FieldSizes) -> tuple[tuple[int, int], ...]:
    """Check pairs (from stage, to stage), and return them sorted.

    Every stage begins and ends at most one.
    """
    advice = "give pairs of a stage and a later one: [[0, 5]]"
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise WrongValueError(name, value, advice)
    found = []
    for index, pair in enumerate(value):
        several = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        # Readers of files name lists by type alone; here the numbers are what is wrong.
        form = "{path} is {value}; "
        if isinstance(pair, list | tuple) and all(map(is_number, pair)):
            form = f"{{path}} is {reprlib.repr(list(pair))}; "
        if not several or not all(is_whole(stage) and stage >= 0 for stage in pair):
            raise WrongValueError(f"{name}[{index}]", pair, advice, form)
        if pair[0] >= pair[1]:
            nearest = list(later(*pair))
            raise WrongValueError(
                f"{name}[{index}]", pair, f"a stage carries to a later one: {nearest}", form
            )
        found.append((int(pair[0]), int(pair[1])))
    for end, verb in ((0, "carries to"), (1, "gets what is carried from")):
        seen: dict[int, int] = {}
        for carry in found:
            stage, other = carry[end], carry[1 - end]
            if stage in seen:
                form = f"{{path}}: stage {stage} {verb} two stages, {seen[stage]} and {other}; "
                once = "give one, and hand on several tensors in one dict or tuple"
                raise WrongValueError(name, value, once, form)
            seen[stage] = other
    return tuple(sorted(found))


def later(one: int, other: int) -> tuple[int, int]:
    """Return the nearest pair of which the second stage comes after the first.

    Examples
    --------
    >>> later(2, 0), later(2, 2), later(0, 0)
    ((0, 2), (1, 2), (0, 1))
    """
    return (other, one) if other < one else (max(one - 1, 0), max(one, 1))


def check_carries(carries: tuple[tuple[int, int], ...], stages: int) -> None:
    """Refuse carries to stages that a schedule does not have."""
    last = max((target for _, target in carries), default=0)
    if last >= stages:
        there = f"are {stages} stages, 0 to {stages - 1}" if stages > 1 else "is 1 stage, 0"
        raise ParameterError(f"carries go to stage {last}; there {there}")


def pairs(value: tuple[tuple[int, int], ...]) -> list[list[int]]:
    """Return carries as plain data."""
    return [list(pair) for pair in value]


def label(name: str, value: Any, _sizes: FieldSizes | None = None) -> str:
    """Check printable text on one line."""
    if not isinstance(value, str) or not value.isprintable():
        raise WrongValueError(name, value, "give text on one line")
    if len(value) > MAX_LABEL:
        form = f"{{path}} has {len(value):,} characters; "
        raise WrongValueError(name, value, f"the limit is {MAX_LABEL}", form)
    return value


def options(name: str, value: Any, _sizes: FieldSizes) -> dict[str, Any]:
    """Check numbers, texts and lists of them by name."""
    if not isinstance(value, Mapping) or len(value) > MAX_OPTIONS:
        advice = f"give a mapping with up to {MAX_OPTIONS} entries"
        raise WrongValueError(name, value, advice)
    for key, entry in value.items():
        path = f"{name}.{label(f'a key of {name}', key)}"
        for item in entry if isinstance(entry, list) else [entry]:
            if isinstance(item, str):
                label(path, item)
            elif item is not None and not (
                isinstance(item, int | float) and abs(item) <= MAX_NUMBER
            ):
                raise WrongValueError(path, item, "give numbers, text or a list of them")
    return dict(value)


def costs(name: str, value: Any, _sizes: FieldSizes) -> Costs | None:
    """Check costs, or a mapping with those that are not the default; None for no costs."""
    if value is None or isinstance(value, Costs):
        return value
    if not isinstance(value, Mapping):
        raise WrongValueError(name, value, "give costs by name: {F: 1, B: 2}")
    for key in value:
        if key not in COST_NAMES and key not in RENAMED:
            form = "{path} has an unknown cost {value}; "
            raise WrongValueError(name, key, did_you_mean(str(key), COST_NAMES), form)
    try:
        return Costs(**value)
    except CostError as error:
        raise ParameterError(f"{name}: {error}") from None


def plain_costs(value: Costs) -> dict[str, Any]:
    """Return the costs that are not the default, as plain data."""
    default = Costs()
    return {
        key: plain_cost(getattr(value, key))
        for key in COST_NAMES
        if getattr(value, key) != getattr(default, key)
    }


def plain_cost(value: Any) -> Any:
    """Return a cost as plain data."""
    if isinstance(value, Mapping):
        text = {key: ",".join(map(str, key)) if isinstance(key, tuple) else key for key in value}
        return {str(text[key]): item for key, item in value.items()}
    return [plain_cost(item) for item in value] if isinstance(value, tuple) else value


def from_costs(name: str, value: Any, _sizes: FieldSizes) -> tuple[str, ...]:
    """Check a list of :data:`FROM_COSTS`."""
    some = isinstance(value, list | tuple)
    if not some or any(not isinstance(item, str) or item not in FROM_COSTS for item in value):
        raise WrongValueError(name, value, f"give a list of {', '.join(FROM_COSTS)}")
    return tuple(dict.fromkeys(value))


def packed(name: str, values: Any) -> NDArray[np.int64]:
    """Return packed actions or offsets as a read-only array of int64."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ParameterError(
            f"{name} is an array of {array.dtype} with {array.ndim} dimensions; give one "
            "dimension of int64"
        )
    # What is looked at once must stay as it is.
    array = array.copy() if array.flags.writeable else array
    array = np.ascontiguousarray(array, dtype=np.int64)
    array.setflags(write=False)
    return array


def check_offsets(offsets: NDArray[np.int64], ranks: int, actions: int) -> None:
    """Refuse offsets that do not cut so many actions into a program for each rank."""
    if len(offsets) != ranks + 1:
        raise ParameterError(
            f"{len(offsets) - 1} programs for {ranks} ranks; give one program per rank"
        )
    begin, end = int(offsets[0]), int(offsets[-1])
    ascends = (offsets[1:] >= offsets[:-1]).all()
    if begin != 0 or end != actions or not ascends:
        raise ParameterError(
            f"offsets go from {begin} to {end} for {actions} actions; "
            "start at 0, go up, and end at the number of actions"
        )


def check_vocabulary(vocabulary: int, placement: Placement, slices: int) -> None:
    """Refuse to shard the output layer of a model that cannot."""
    if vocabulary and (placement.copies > 1 or slices > 1 or first_stages(placement).min() < 0):
        raise ParameterError(
            f"vocabulary is {vocabulary}; that needs one copy of the model, whole microbatches and "
            "a stage on every rank; use 0"
        )


slices, slices_in_file = count(MAX_SLICES), up_to(MAX_SLICES)
recompute_after = one_of(("forward", "gradient"))
vocabulary = one_of(
    VOCABULARIES, "use 0 for an output layer on the last stage, 1 or 2 for a sharded one"
)
