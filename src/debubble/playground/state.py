"""What the page may send: sizes, costs and schedules, all of them bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.engine.graph import P2PMode
from debubble.interchange.text import shown
from debubble.playground import limits
from debubble.playground.limits import RefusedError

Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Times = Time | Annotated[list[Time], Field(min_length=1, max_length=limits.MAX_RANKS * 8)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^/\\\x00-\x1f]+$")]
OptionValue = bool | int | float | Annotated[str, Field(max_length=80)] | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class File(_Strict):
    """A file that the user picked: its text, and its name without folders."""

    name: Name
    text: Annotated[str, Field(max_length=limits.MAX_FILE)]


class Wanted(_Strict):
    """One schedule: a registered name with options, or a file."""

    name: Name = ""
    options: Annotated[dict[str, OptionValue], Field(max_length=16)] = {}
    file: File | None = None


Limit = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Limits = Annotated[list[Limit], Field(min_length=1, max_length=limits.MAX_RANKS)]
"""A memory limit for each rank."""


class CostValues(_Strict):
    """Costs as typed; None is the default."""

    basis: Literal["action", "rank"] = "rank"
    F: Times | None = None
    I: Times | None = None
    W: Times | None = None
    B: Times | None = None
    O: Time | None = None
    p2p: Time | None = None
    activation: Times | None = None
    kept_for_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    file: File | None = None


class State(_Strict):
    """Everything a page shows."""

    schedules: Annotated[list[Wanted], Field(min_length=1, max_length=limits.MAX_SCHEDULES)]
    ranks: Annotated[int, Field(ge=1, le=limits.MAX_RANKS)] = 4
    microbatches: Annotated[int, Field(ge=1, le=limits.MAX_MICROBATCHES)] = 8
    chunks: Annotated[int, Field(ge=1, le=limits.MAX_CHUNKS)] | None = None
    mode: P2PMode = "overlapped"
    memory: Limit | Limits | None = None
    costs: CostValues = CostValues()

    def read_costs(self) -> tuple[Costs, str]:
        """Costs, and the name of the unit of times.

        Raises
        ------
        RefusedError
            When they are no costs; it names the field.
        """
        given = self.costs
        if given.file is not None:
            from debubble.interchange.cost_files import parse_costs

            try:
                file = parse_costs(given.file.text, given.file.name)
            except DebubbleError as error:
                raise RefusedError(str(error), "costs") from None
            return file.costs, file.time_unit
        values = given.model_dump(exclude={"file", "basis"}, exclude_none=True)
        try:
            return Costs(basis=given.basis, **values), ""
        except DebubbleError as error:
            raise RefusedError(str(error), cost_named(str(error))) from None


def cost_named(message: str) -> str:
    """The cost that a message of :class:`debubble.CostError` begins with, else ``""``."""
    word = message.partition(" ")[0].partition("[")[0]
    return word if word in CostValues.model_fields else ""


class Export(_Strict):
    """A file to make: which of the schedules of a state, and in which format."""

    state: State
    index: Annotated[int, Field(ge=0, lt=limits.MAX_SCHEDULES)] = 0
    format: Literal["torch-csv", "torch-csv-comms", "json", "chrome-trace", "html"]


def read(model: type[_Strict], body: bytes) -> Any:
    """A request as a model.

    Raises
    ------
    RefusedError
        When anything in it is not as the model says; it names the first such field.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = [part for part in first["loc"] if part in _NAMES]
        field = next((part for part in reversed(where) if part in _FIELDS), "")
        text = first["msg"][:1].lower() + first["msg"][1:]
        if first["type"] == "extra_forbidden":
            text = f"unknown key {shown(first['loc'][-1])}"
        bounds = first.get("ctx", {})
        nearest = bounds.get("ge", bounds.get("le"))
        place = ".".join(map(str, where)) or "the request"
        message = f"{place}: {text}"
        if first["type"] in _BOUNDS:
            limit = text.removeprefix("input should be ")
            message = f"{field or place} is {shown(first['input'])}; give a number {limit}"
        raise RefusedError(message, str(field), nearest) from None


_BOUNDS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
_FIELDS = {*State.model_fields, *CostValues.model_fields} - {"file"}
_NAMES = {*_FIELDS, *Wanted.model_fields, *File.model_fields, *Export.model_fields}
