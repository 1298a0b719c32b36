"""``debubble costs``: check a cost file, explain every key, or start a new file."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from debubble.analysis.metrics import memory_text, times_text
from debubble.cli.app import command
from debubble.cli.options import AsJson, Text, switch, writes
from debubble.cli.output import note, print_json
from debubble.core.costs import COST_FIELDS
from debubble.core.errors import ParameterError
from debubble.core.units import amount, memory_scale
from debubble.interchange.cost_files import costs_data, load_costs
from debubble.interchange.cost_model import DESCRIBED, key_reference, template
from debubble.interchange.files import write_text

WIDTH = 79


def costs(
    file: Annotated[
        Text, typer.Argument(metavar="[FILE]", help="A .yaml, .json or .toml file.")
    ] = None,
    init: Annotated[bool, switch("--init", "Print a commented cost file to fill in.")] = False,
    output: Annotated[Text, writes("With --init, where to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a cost file, start a new one, or list its keys.

    With FILE, checks it and explains its values. With --init, prints a commented file that --costs
    takes as it is. Otherwise, explains every key.
    """
    if file is not None and init:
        raise ParameterError("--init writes a new file; leave FILE out, and name it with -o")
    if output is not None and not init:
        raise ParameterError("-o needs --init; add it, or leave -o out")
    if init and as_json:
        raise ParameterError("--init writes YAML; leave --json out")
    if init:
        _write(output)
    elif file is not None:
        _summarize(file, as_json)
    else:
        _explain(as_json)


def _write(output: str | None) -> None:
    if output is None:
        print(template(), end="")
        return
    if not output.lower().endswith((".yaml", ".yml")):
        raise ParameterError(f"-o '{output}': the new file is YAML; end it in .yaml")
    if Path(output).exists():
        raise ParameterError(f"'{output}' exists; give another name, or remove it first")
    write_text(output, template())
    note(f"wrote {output}; try: debubble simulate 1f1b --costs {output}")


def _summarize(path: str, as_json: bool) -> None:
    file = load_costs(path)
    sizes = {key: getattr(file, key) for key in ("ranks", "microbatches", "chunks")}
    data = costs_data(file.costs)
    if file.memory_limit is not None:
        data["memory"]["limit"] = file.memory_limit
    # Without times of its own, every rank takes 1 for F, I and W.
    data["basis"] = "rank" if file.costs.times_per_rank else "action"
    labels = {"name": file.name, "source": file.source, "time_unit": file.time_unit}
    if as_json:
        print_json({key: value for key, value in (labels | sizes).items() if value} | data)
        return
    # The unit follows every amount.
    data["memory"].pop("unit", None)
    shown = ", ".join(f"{size:,} {key}" for key, size in sizes.items() if size)
    rows = {
        "name": file.name, "source": file.source, "sizes": shown,
        "times": f"{_values(data['times'], file.time_unit)}\n{times_text(file.costs)}",
        "memory": f"{_values(data['memory'], file.memory_unit)}\n{memory_text(file.costs)}",
    }  # fmt: skip
    print(f"ok: {path}")
    for key, text in rows.items():
        lines = [line for part in text.split("\n") for line in textwrap.wrap(part, WIDTH - 10)]
        _print_labeled(key, lines, 9)


def _print_labeled(key: str, lines: list[str], width: int) -> None:
    for index, line in enumerate(lines):
        print(f"{'' if index else key:<{width}} {line}")


def _values(values: dict[str, Any], unit: str) -> str:
    """Return costs on one line; amounts with their unit."""
    texts = []
    for name, value in values.items():
        spec = COST_FIELDS.get(name)
        counted = spec is None or (not spec.share if spec.section == "memory" else spec.timed)
        texts.append(f"{name} {_value(value, unit if counted else '')}")
    return ", ".join(texts)


def _value(value: Any, unit: str) -> str:
    """Return one cost in words; bytes as MiB or GiB."""
    if isinstance(value, dict):
        return " ".join(f"{key}: {_value(item, unit)}" for key, item in value.items())
    if not isinstance(value, list | tuple):
        return value if isinstance(value, str) else amount(value, unit)
    flat = [item for row in value for item in (row if isinstance(row, list | tuple) else [row])]
    scale = memory_scale(unit, max(flat))
    matrix = isinstance(value[0], list | tuple)
    shown = (min(flat), max(flat)) if matrix or len(value) > 16 else flat
    joint = " to " if len(shown) < len(flat) else "/"
    return f"{joint.join(map(scale.text, shown))} {scale.unit}".rstrip()


def _explain(as_json: bool) -> None:
    found = {section: key_reference(section) for section in DESCRIBED}
    if as_json:
        print_json(
            [
                {"section": section, "key": key, "value": shape, "text": text}
                for section, rows in found.items()
                for key, shape, text in rows
            ]
        )
        return
    for section, rows in found.items():
        print(f"{section}:" if section else "Keys of a cost file in YAML, JSON or TOML:\n")
        for key, shape, text in rows:
            indent = "  " if section else ""
            lines = textwrap.wrap(f"{text}. {shape[0].upper()}{shape[1:]}.", WIDTH - 22)
            _print_labeled(f"{indent}{key}", lines, 21)
        print()
    print(
        "Values per stage are a list, or a mapping such as {default: 1, 2: 1.5}. The smallest\n"
        "file is times: {F: 1, B: 2}; 'debubble costs --init -o costs.yaml' writes all keys."
    )


app = command(
    costs, ["costs --init -o costs.yaml", "costs examples/zero-bubble/gpt-28.3b-m96.yaml", "costs"]
)
