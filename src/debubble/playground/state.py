"""Requests of the page, with limits for every value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from debubble.analysis.question import OPTIONS
from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.errors import DebubbleError
from debubble.core.options import OptionSpec, Whole, Word
from debubble.interchange.cost_files import CostFile, parse_costs
from debubble.interchange.text import shown
from debubble.lowering.chain import LOWERINGS
from debubble.planner.candidate import PRECISIONS
from debubble.planner.options import HELD, STATE
from debubble.playground import limits
from debubble.playground.limits import RefusedError, about

if TYPE_CHECKING:
    from debubble.engine.graph import P2PMode

CostTime = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
CostTimes = (
    CostTime | Annotated[list[CostTime], Field(min_length=1, max_length=limits.MOST["ranks"] * 8)]
)
Chunks = Annotated[int, Field(ge=1, le=limits.MOST["chunks"])]
ShortName = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^/\\\x00-\x1f]+$")]
OptionValue = bool | int | float | Annotated[str, Field(max_length=80)] | None


class Strict(BaseModel):
    """Request, or a part of one, without unknown keys and with values of the right types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class File(Strict):
    """File that the user picked: its text, and its name without folders."""

    name: ShortName
    text: Annotated[str, Field(max_length=limits.MAX_FILE)]


class Wanted(Strict):
    """One schedule: a registered name with its own chunks and options, or a file."""

    name: ShortName = ""
    chunks: Chunks | None = None
    options: Annotated[dict[str, OptionValue], Field(max_length=16)] = {}
    file: File | None = None


Limit = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Limits = Annotated[list[Limit], Field(min_length=1, max_length=limits.MOST["ranks"])]
"""A memory limit for each rank."""


_NUMBERS: dict[str, Any] = {
    **dict.fromkeys(("stage", "rank", "pair", "microbatch", "boundary"), CostTimes),
    **dict.fromkeys(("link", "number", "rate"), CostTime),
}
"""Type of a cost, by its shape."""


class CostValues(Strict):
    """Costs as typed; None is the default."""

    basis: Literal["action", "rank"] = "rank"
    file: File | None = None

    # Every cost that numbers can give is a field, too.
    __annotations__ |= {
        name: Annotated[_NUMBERS[spec.shape] | None, Field(default=None)]
        for name, spec in COST_FIELDS.items()
        if spec.shape in _NUMBERS
    }


FIELD = {"p2p_mode": "mode"}
"""Fields with other names than their options."""

AT_START = {"ranks": 4, "microbatches": 8}
"""Defaults of fields that differ from those of their options."""

_ON_PAGE = {row.name: row.on_page for row in LOWERINGS}


def _values_of(row: OptionSpec) -> Any:
    """Return the type of an option's field; None where the page has none."""
    if row.typed_only:
        return None
    if row.name in _ON_PAGE:
        choice = _ON_PAGE[row.name]
        return choice and Literal[tuple(choice.values)]
    return _numbers_or_words(row, limits.MOST.get(row.name)) or Limit | Limits


def _numbers_or_words(row: OptionSpec, most: int | None) -> Any:
    """Return the type of whole numbers up to `most`, or of words; None for other options."""
    if isinstance(row.type, Whole):
        return Annotated[int, Field(ge=row.type.least, le=min(row.type.most, most or math.inf))]
    return Literal[row.type.words] if isinstance(row.type, Word) else None


def _field(kind: Any, default: Any) -> Any:
    optional = kind | None if default is None else kind
    return Annotated[optional, Field(default=default)]


_FIELD_TYPES = [(row, kind) for row in OPTIONS if (kind := _values_of(row)) is not None]


class PageState(Strict):
    """State of the page: schedules, costs, and every option of a question that the page has."""

    schedules: Annotated[list[Wanted], Field(min_length=1, max_length=limits.MAX_SCHEDULES)]
    costs: CostValues = CostValues()

    if TYPE_CHECKING:
        ranks: int
        microbatches: int
        chunks: int | None
        iterations: int | None
        mode: P2PMode
        memory: float | list[float] | None

    __annotations__ |= {
        FIELD.get(row.name, row.name): _field(kind, AT_START.get(row.name, row.default))
        for row, kind in _FIELD_TYPES
    }

    @property
    def options(self) -> dict[str, Any]:
        """Options other than lowerings as keywords of :func:`debubble.compare`."""
        return {
            row.name: getattr(self, FIELD.get(row.name, row.name))
            for row, _ in _FIELD_TYPES
            if row.name not in _ON_PAGE
        }

    @property
    def lowering(self) -> dict[str, Any]:
        """Lowerings as keywords of :func:`debubble.compare`."""
        chosen = {row.name: getattr(self, row.name) for row in LOWERINGS if row.on_page}
        parts = {row.name: row.part_of for row in LOWERINGS if row.part_of}
        # The page sends the parts of a lowering even when that is off.
        return {
            name: value
            for name, value in chosen.items()
            if name not in parts or chosen[parts[name]] is not None
        }

    def read_costs(self) -> CostFile:
        """Return the costs, with the names of their units; a refusal names the field."""
        given = self.costs
        if given.file is not None:
            with about("costs"):
                return parse_costs(given.file.text, given.file.name)
        values = given.model_dump(exclude={"file", "basis"}, exclude_none=True)
        try:
            return CostFile(Costs(basis=given.basis, **values))
        except DebubbleError as error:
            raise RefusedError(str(error), cost_named(str(error))) from None

    def with_costs(self) -> tuple[PageState, CostFile]:
        """Return the costs, and the state with the memory limit of their file unless it has one."""
        file = self.read_costs()
        if "memory" in self.model_fields_set or file.memory_limit is None:
            return self, file
        return self.model_copy(update={"memory": file.memory_limit}), file


def cost_named(message: str) -> str:
    """Return the cost that a message of :class:`debubble.CostError` begins with, else ``""``."""
    word = message.partition(" ")[0].partition("[")[0]
    return word if word in CostValues.model_fields else ""


_MOST_HELD = {"chunks": limits.MOST["chunks"], "microbatch_size": limits.MAX_BATCH}
_HELD = {
    row: kind
    for row in (*HELD, *STATE)
    if (kind := _numbers_or_words(row, _MOST_HELD.get(row.name, limits.MAX_GPUS)))
}


class PlanForm(Strict):
    """Form of a plan; what it gives of degrees and the like is held fixed."""

    model: ShortName = ""
    file: File | None = None
    gpu: ShortName
    gpus: Annotated[int, Field(ge=1, le=limits.MAX_GPUS)]
    batch: Annotated[int, Field(ge=1, le=limits.MAX_BATCH)]
    sequence: Annotated[int, Field(ge=1, le=limits.MAX_SEQUENCE)]
    memory: Annotated[str, Field(max_length=40)] | None = None
    imbalance: Annotated[float, Field(ge=1, le=1000)] = 1.0
    framework: ShortName | None = None
    schedule: ShortName | None = None
    recompute: ShortName | None = None
    measured: File | None = None
    why: Annotated[str, Field(max_length=200)] = ""

    __annotations__ |= {"precision": _field(Literal[PRECISIONS], PRECISIONS[0])} | {
        row.name: _field(kind, row.default) for row, kind in _HELD.items()
    }


class Poll(Strict):
    """Poll of a running search, which may end it."""

    search: ShortName
    stop: bool = False


class ExportRequest(Strict):
    """File to make: index of the state's schedule, part of a trace, and format."""

    state: PageState
    index: Annotated[int, Field(ge=0, lt=limits.MAX_SCHEDULES)] = 0
    part: Annotated[int, Field(ge=0, lt=limits.MAX_SCHEDULES)] = 0
    format: Literal["torch-csv", "torch-csv-comms", "json", "chrome-trace", "html"]


def read(model: type[Strict], body: bytes) -> Any:
    """Parse a request; the refusal names the first wrong field, its value and a fix."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = [part for part in first["loc"] if part in _NAMES]
        field = str(next((part for part in reversed(where) if part in _FIELDS), ""))
        name = field or ".".join(map(str, where)) or "the request"
        bounds = first.get("ctx", {})
        nearest = bounds.get("ge", bounds.get("le"))
        raise RefusedError(_explained(name, first), field, nearest) from None


def _explained(name: str, error: Any) -> str:
    """Return the message for an invalid value, with a fix."""
    kind, value, bounds = error["type"], error["input"], error.get("ctx", {})
    words = error["msg"][:1].lower() + error["msg"][1:]
    if kind == "extra_forbidden":
        return f"{name}: unknown key {shown(error['loc'][-1])}; leave it out"
    if kind == "missing":
        return f"{name}: '{error['loc'][-1]}' is missing; add it"
    if kind == "json_invalid":
        return f"the request is not JSON ({bounds.get('error', words)}); send one object"
    if kind in ("too_short", "too_long") or kind.startswith("string_too"):
        least, most = bounds.get("min_length"), bounds.get("max_length")
        what = "characters" if isinstance(value, str) else "entries"
        limit = f"at least {least}" if least is not None else f"at most {most:,}"
        return f"{name} has {len(value):,} {what}; give {limit}"
    wanted = words.removeprefix("input should be ")
    if kind.startswith(("less_than", "greater_than")):
        wanted = f"a number {wanted}"
    elif kind == "string_pattern_mismatch":
        wanted = "a text without slashes"
    elif kind.startswith("int_"):
        low, high = WHOLE.get(name, (1, 1 << 20))
        wanted = f"a whole number from {low} to {high:,}"
    elif kind in ("float_type", "float_parsing", "finite_number"):
        wanted = "a number, or one for each rank or stage"
    elif kind == "literal_error":
        wanted = str(bounds.get("expected", "")).replace("'", "")
    return f"{name} is {shown(value)}; give {wanted}"


WHOLE = {
    name: (spec["minimum"], spec["maximum"])
    for model in (PageState, PlanForm)
    for name, about in model.model_json_schema()["properties"].items()
    for spec in (about, *about.get("anyOf", ()))
    if spec.get("type") == "integer"
}
"""Limits of every field with whole numbers."""

_FIELDS = {*PageState.model_fields, *CostValues.model_fields, *PlanForm.model_fields} - {"file"}
_NAMES = {*_FIELDS, *Wanted.model_fields, *File.model_fields, *ExportRequest.model_fields,
          *Poll.model_fields}  # fmt: skip
