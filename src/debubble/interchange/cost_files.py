"""Cost files: what the actions of one model on one cluster cost, in YAML, JSON or TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debubble.core.cost_fields import DEFAULT
from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.embedding_and_head import PARTS
from debubble.core.errors import CostError, FormatError
from debubble.core.schedule_fields import plain_costs
from debubble.interchange import syntax
from debubble.interchange.cost_model import validate
from debubble.interchange.files import write_text
from debubble.interchange.text import read_text

if TYPE_CHECKING:
    from debubble.engine.memory import Limit

MAX_BYTES = 1 << 20
"""Most bytes of a cost file."""

_MEMORY = tuple(name for name, spec in COST_FIELDS.items() if spec.section == "memory")


@dataclass(frozen=True)
class CostFile:
    """Contents of a cost file."""

    costs: Costs
    """Times, transfers and memory of actions."""
    ranks: int | None = None
    """Size to use where no other is given; None when the file leaves it open."""
    microbatches: int | None = None
    chunks: int | None = None
    memory_limit: Limit | None = None
    """Activation memory of every rank, one number or one for each, in the unit of
    ``costs.activation``, or in activation units when the file has no activation."""
    name: str = ""
    """Name of the model."""
    source: str = ""
    """Source of the numbers."""
    time_unit: str = ""
    memory_unit: str = ""
    layers: Mapping[str, Any] = field(default_factory=dict)
    """Costs of every layer of the model by name, one number for each, mappings for embedding, head
    and mtp, and the cut that the model has already; empty when the file has none."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """Measured values that are no costs."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Anything; tests keep published results here."""


def load_costs(path: str | Path) -> CostFile:
    """Read a cost file.

    Parameters
    ----------
    path
        A ``.yaml``, ``.yml``, ``.json`` or ``.toml`` file::

            name: GPT 28.3B on A100
            source: Zero Bubble, arXiv 2401.10241, Table 9
            ranks: 32                 # defaults for the command line
            microbatches: 96
            basis: rank               # times of a rank's whole share; 'action' is the default
            time_unit: ms
            times: {F: 10.419, I: 10.207, W: 7.715, p2p: 0.408}
            memory: {unit: GB, activation: 0.6, kept_for_weight: 0.4, limit: 40}

        ``docs/costs.md`` and ``debubble costs`` list every key. A cost is a number, a list with one
        per stage (per rank with the basis ``rank``), or a mapping from stages to numbers:
        ``F: {default: 1, 2: 1.5}``.

    Raises
    ------
    FormatError
        With file, dotted key and value of the first thing that is wrong.
    """
    return parse_costs(read_text(path, MAX_BYTES), str(path))


def parse_costs(text: str, where: str) -> CostFile:
    """Read the text of a cost file; the ending of its name gives the syntax."""
    data = validate(syntax.parse(text, where), where)
    times, memory = data.pop("times"), data.pop("memory")
    basis, runtime = data.pop("basis", "action"), data.pop("runtime", "any")
    _check_sizes(times, memory, basis, data.get("ranks"), where)
    lengths, count = times.get("microbatch"), data.get("microbatches")
    if isinstance(lengths, tuple) and count not in (None, len(lengths)):
        raise FormatError(
            f"{where}: times.microbatch has {len(lengths)} values for {count} microbatches"
        )
    limit, unit = memory.pop("limit", None), memory.pop("unit", "")
    _check_limit(limit, memory.get("activation"), where)
    for name in PARTS:
        if name in memory:
            times[name] = times.get(name, {}) | {"activation": memory.pop(name)}
    costs = Costs(
        basis=basis, runtime=runtime, time_unit=data.get("time_unit", ""), memory_unit=unit,
        **times, **memory,
    )  # fmt: skip
    return CostFile(costs, memory_limit=limit, memory_unit=unit, **data)


def costs_data(costs: Costs) -> dict[str, Any]:
    """Return costs as the data of a cost file that :func:`parse_costs` reads back.

    Raises CostError for rank costs with a divisor of their own, which a file cannot hold.
    """
    if costs.chunks is not None:
        raise CostError(f"costs are divided by {costs.chunks} chunks; a cost file cannot say that")
    values = plain_costs(costs)
    labels: dict[str, Any] = {
        key: values.pop(key) for key in ("time_unit", "runtime") if key in values
    }
    labels = {"basis": values.pop("basis", costs.basis)} | labels
    unit = values.pop("memory_unit", "")
    memory = {name: values.pop(name) for name in _MEMORY if name in values}
    for name in PARTS:
        part = dict(values.pop(name, {}))
        if "activation" in part:
            memory[name] = part.pop("activation")
        if part:
            values[name] = part
    if unit:
        memory["unit"] = unit
    # A file needs a time; that of a transfer is what it is by default.
    return {**labels, "times": values or {"p2p": 0.0}, "memory": memory}


def save_costs(data: Mapping[str, Any], path: str) -> None:
    """Write the data of a cost file as YAML or JSON, by the ending of its name."""
    if path.lower().endswith(".json"):
        text = json.dumps(data, indent=2) + "\n"
    elif path.lower().endswith((".yaml", ".yml")):
        text = syntax.yaml_text(data)
    else:
        raise FormatError(f"'{path}': a cost file is written as .yaml or .json")
    parse_costs(text, path)
    write_text(path, text)


def _check_sizes(
    times: Mapping[str, Any], memory: Mapping[str, Any], basis: str, ranks: int | None, where: str
) -> None:
    """Refuse lists of different lengths, and lists that do not fit the number of ranks."""
    by_stage: dict[str, int] = {}
    by_rank: dict[str, int] = {}
    for section, values in (("times", times), ("memory", memory)):
        for name, value in values.items():
            shape = COST_FIELDS[name].shape if name in COST_FIELDS else ""
            complete = isinstance(value, tuple) or (
                isinstance(value, Mapping) and shape != "pair" and DEFAULT not in value
            )
            if name == "limit" and isinstance(value, tuple):
                by_rank["memory.limit"] = len(value)
            if complete and shape in ("stage", "pair", "rank", "link"):
                group = by_stage if shape in ("stage", "pair") else by_rank
                group[f"{section}.{name}"] = len(value)
    owner = "stage"
    if basis == "rank":
        owner, by_rank = "rank", by_stage | by_rank
    for key, size in by_rank.items():
        if ranks is not None and size != ranks:
            raise FormatError(f"{where}: {key} has {size} values for {ranks} ranks")
    for group, noun in ((by_stage, owner), (by_rank, "rank")):
        (first, wanted), *rest = group.items() or [("", 0)]
        for key, size in rest:
            if size != wanted:
                raise FormatError(
                    f"{where}: {key} has {size} values and {first} {wanted}; both have one per "
                    f"{noun}"
                )


def _check_limit(limit: Any, activation: Any, where: str) -> None:
    """Refuse a limit below one activation: it is in another unit than the activation."""
    if limit is None or activation is None:
        return
    values = activation.values() if isinstance(activation, Mapping) else activation
    least = activation if isinstance(activation, float) else min(values)
    lowest = limit if isinstance(limit, float) else min(limit)
    if lowest < least:
        raise FormatError(
            f"{where}: memory.limit is {lowest:g}, less than one activation of {least:g}; give "
            "both in the same unit, or leave memory.activation out to count in activation units"
        )
