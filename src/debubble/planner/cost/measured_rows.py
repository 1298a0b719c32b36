"""Tables of measured steps: a row in explicit columns as a planning request and a candidate.

Only the columns of :data:`COLUMNS` and :data:`MODEL_COLUMNS` count; others, such as ``source`` and
``notes``, change nothing. What a row leaves open has the default of a plan, and is named.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from debubble.core.errors import FormatError, ParameterError, did_you_mean
from debubble.core.units import counted
from debubble.planner.candidate import Candidate, Training
from debubble.planner.case import Case
from debubble.planner.cost.measured_run import measured_run
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.cost.row_models import MODEL_COLUMNS, MODEL_WORDS, OPEN, Cells, row_model
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.published_runtimes import runtime_of
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import GPUS, Gpu
from debubble.planner.memory.layer_bytes import RECOMPUTE_MODULES
from debubble.planner.model.transformer import Model
from debubble.planner.request import PlanRequest

NEEDED = ("model", "gpu", "gpus", "tp", "pp", "global_batch", "step_s")
"""Columns that every table has."""

COLUMNS = {
    "gpus": "gpus", "tp": "tp", "pp": "pp", "vp": "chunks", "cp": "cp", "ep": "ep", "dp": "dp",
    "micro_batch": "microbatch_size", "global_batch": "batch", "seq": "sequence",
}  # fmt: skip
"""Columns of whole numbers, each with its key of a measured step."""

OTHERS = (
    "step_s", "mem_gb", "recompute", "zero", "schedule", "precision", "framework", "year",
    "attention", "sequence_parallel", "fused_kernels", "fused_norms", "fused_loss",
    "gradient_bytes", "overlap", "nic_gb_s",
)  # fmt: skip
"""Columns on how it ran, and what was measured."""

ALIKE = 0.8
"""Likeness to a known column from which an unknown one is a slip: "hiden", "global_batch_size"."""

GRADIENTS = (2, 4)
"""Bytes in which gradients add up."""

DEFAULTS = {"cp": 1, "ep": 1, "micro_batch": 1}

SCHEDULES = {
    "none": "1f1b", "zb-1p": "zb-h1", "dualpipev": "dualpipe-v", "zbv": "zb-v",
    "zbvzerobubble": "zb-v", "interleaved1f1b": "interleaved-1f1b",
}  # fmt: skip
"""Names that tables have for registered schedules. ZB-1p has ZB-H1's times in all published
cases."""

TWO_CHUNKS = ("zb-v", "v-half", "v-min", "dualpipe-v")
"""Schedules with two stages on every rank."""

OVERLAPS = ("tp", "dp", "p2p")
"""Communication that runs during other work, as the column ``overlap`` names it."""

MEGATRON_FSDP_YEAR = 2025
"""First year in which Megatron-LM could split gradients."""

MODULES = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts"}
"""Short names of recomputed modules, with Megatron-LM's."""


@dataclass(frozen=True)
class MeasuredRow:
    """A row as a plan, with what was measured; None where a row has no figure."""

    request: PlanRequest
    candidate: Candidate
    seconds: float | None
    memory: float | None
    """Bytes of the fullest rank."""
    assumed: tuple[str, ...] = ()
    """Columns that the row leaves open, each with the value that is taken."""

    @property
    def case(self) -> Case:
        """The run with all that its times and bytes follow from."""
        return self.request.case(self.candidate)

    def with_factors(self, factors: Factors) -> Case:
        """Return the run with other efficiencies."""
        return replace(self.case, factors=factors)


def parse_rows(text: str, path: str) -> list[dict[str, str]]:
    """Parse the text of a CSV file with the columns :data:`NEEDED` into its rows.

    Short and long ones are read as far as they go.
    """
    return [row for _, row in numbered_rows(text, path, ragged=True)]


def numbered_rows(
    text: str, path: str, *, ragged: bool = False
) -> list[tuple[int, dict[str, str]]]:  # fmt: skip
    """Parse the text of a CSV file into rows, each with the number of its first line.

    Rows with other numbers of cells than the header has are refused unless `ragged`.
    """
    reader, lines, begin = csv.reader(io.StringIO(text)), [], 1
    try:
        for cells in reader:
            if cells:
                lines.append((begin, cells))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    names = [name.strip() for name in lines[0][1]] if lines else []
    _check_names(names, path)
    rows = []
    for line, cells in lines[1:]:
        surplus = any(cell.strip() for cell in cells[len(names) :])
        if not ragged and (len(cells) < len(names) or surplus):
            raise FormatError(
                f"{path}: line {line} has {counted(len(cells), 'cell')}, the header "
                f"{counted(len(names), 'column')}; give a cell for every column"
            )
        found = dict.fromkeys(names, "") | dict(zip(names, cells, strict=False))
        rows.append((line, {name: cell for name, cell in found.items() if name}))
    return rows


def _check_names(names: list[str], path: str) -> None:
    """Refuse a header without a needed column, with one twice, or with a mistyped one."""
    missing = [name for name in NEEDED if name not in names]
    known = (*NEEDED, *COLUMNS, *MODEL_COLUMNS, *MODEL_WORDS, *OTHERS)
    for name in names:
        if name and names.count(name) > 1:
            raise FormatError(f"{path}: column {name} is there twice; give it once")
        others = [one for one in known if one not in names]
        # Information with a name of its own, such as "source", is welcome.
        if name and name not in known and get_close_matches(name.lower(), others, 1, ALIKE):
            raise FormatError(f"{path}: unknown column '{name}'; {did_you_mean(name, others)}")
    if missing:
        raise FormatError(f"{path}: no column {', '.join(missing)}; these are needed: "
                          f"{', '.join(NEEDED)}")  # fmt: skip


def read_row(row: Mapping[str, str], where: str, base: PlanRequest | None = None) -> MeasuredRow:
    """Return the plan of a row.

    Parameters
    ----------
    row
        Texts by column.
    where
        Name of the row for messages.
    base
        Request whose model and training count for what the row leaves open; without one, a row
        gives its model and sequence.

    Raises
    ------
    FormatError, ParameterError
        When a cell is wrong, or something needed is open; the message has the value and the limit.
    """
    cells = Cells(row, where)
    numbers = {key: cells.whole(key) for key in COLUMNS}
    model = _model(cells, base)
    gpu = _gpu(cells, base)
    for key, default in DEFAULTS.items():
        if numbers[key] is None:
            numbers[key] = cells.assume(key, default)
    for key in ("gpus", "tp", "pp", "global_batch"):
        if numbers[key] is None:
            raise FormatError(f"{where}: {key} not given")
    if numbers["seq"] is None:
        if base is None:
            raise FormatError(f"{where}: seq not given")
        numbers["seq"] = cells.assume("seq", base.training.sequence)
    runtime_name = cells.word("framework")
    cells.whole("year")  # counts only for some, but is never a word
    training = _training(cells, base)
    schedule = _schedule(cells, numbers, len(model.layers), training.runtime)
    zero = _zero(cells, runtime_name)
    recompute, modules = _recompute(cells)
    given: dict[str, Any] = {COLUMNS[key]: value for key, value in numbers.items()}
    given |= {"schedule": schedule, "recompute": recompute, "zero": zero}
    factors = Factors() if base is None else base.factors
    request = PlanRequest(
        model, Cluster(gpu, int(numbers["gpus"] or 1)), training, factors, capacity=gpu.memory
    )
    run = measured_run(given, where, request)
    request = replace(request, training=run.training, limit=request.safe)
    candidate = replace(run.candidate, modules=modules)
    seconds, memory = cells.amount("step_s"), cells.amount("mem_gb", 1e9)
    return MeasuredRow(request, candidate, seconds, memory, tuple(cells.assumed))


def _model(cells: Cells, base: PlanRequest | None) -> Model:
    """Return the model that the columns describe, or that ``model`` names."""
    numbers = {key: cells.whole(key) for key in MODEL_COLUMNS}
    name = (cells.row.get("model") or "").strip()
    return row_model(name, numbers, cells, None if base is None else base.model)


def _gpu(cells: Cells, base: PlanRequest | None) -> Gpu:
    """Return the GPU whose name begins a cell, such as ``"H100-80GB-SXM"``, or the command's."""
    text, network = cells.text("gpu"), cells.amount("nic_gb_s", 1e9)
    if network is None and cells.text("nic_gb_s") not in OPEN:
        raise FormatError(
            f"{cells.where}: nic_gb_s '{cells.text('nic_gb_s')}'; give a positive number of GB/s"
        )
    known = [name for name in GPUS if text.startswith(name)]
    own = None if base is None else base.cluster.gpu
    if own is not None and text == own.name.lower():
        return own if network is None else replace(own, nic=network)
    if not known:
        raise FormatError(
            f"{cells.where}: unknown GPU '{cells.row.get('gpu')}'; {did_you_mean(text, GPUS)}"
        )
    gpu = GPUS[max(known, key=len)]
    return gpu if network is None else replace(gpu, nic=network)


def _schedule(
    cells: Cells, numbers: dict[str, int | None], layers: int, runtime: Habits
) -> str:  # fmt: skip
    """Return the registered schedule of a row, and set its chunks.

    Where neither is given, Megatron-LM's recipes interleave as little as they can.
    """
    word = cells.word("schedule")
    name = SCHEDULES.get(word, word)
    pp, chunks = numbers["pp"] or 1, numbers["vp"]
    if pp == 1:
        numbers["vp"] = 1
        return "1f1b"
    if not name and chunks is None and runtime == MEGATRON:
        name = cells.assume("schedule", "interleaved-1f1b")
    if name in TWO_CHUNKS and chunks is None:
        numbers["vp"] = 2
    elif name == "interleaved-1f1b" and chunks is None:
        each = max(layers // pp, 1)
        least = next((v for v in range(2, each + 1) if each % v == 0), 2)
        numbers["vp"] = cells.assume("vp", least)
    elif chunks is None:
        numbers["vp"] = cells.assume("vp", 1)
    if not name:
        name = cells.assume("schedule", "1f1b" if numbers["vp"] == 1 else "interleaved-1f1b")
    if name in ("1f1b", "interleaved-1f1b"):
        return "interleaved-1f1b" if (numbers["vp"] or 1) > 1 else "1f1b"
    return str(name)


def _training(cells: Cells, base: PlanRequest | None) -> Training:
    """Return the training of a row; batch and sequence are the candidate's to set."""
    start = Training(1, 1) if base is None else base.training
    name = cells.word("framework")
    runtime = runtime_of(name) if name else start.runtime
    if not name:
        cells.assume("framework", runtime.name)
    precision = _precision(cells.text("precision"), cells.where)
    if precision is None:
        precision = cells.assume("precision", start.precision)
    overlap = cells.text("overlap")
    if not overlap:
        shown = [key for key in OVERLAPS if getattr(start, f"overlap_{key}")]
        cells.assume("overlap", "+".join(shown) or "none")
        parts = shown
    else:
        parts = [] if overlap == "none" else overlap.split("+")
    wrong = [part for part in parts if part not in OVERLAPS]
    if wrong:
        raise FormatError(
            f"{cells.where}: overlap '{wrong[0]}'; {did_you_mean(wrong[0], OVERLAPS)}"
        )
    attention = cells.text("attention")
    if attention not in ("", "flash", "scores"):
        raise FormatError(f"{cells.where}: attention '{attention}'; give flash or scores")
    flash = attention == "flash" if attention else start.flash
    if not attention:
        cells.assume("attention", "flash" if flash else "scores")
    gradient = cells.whole("gradient_bytes")
    if gradient not in (None, *GRADIENTS):
        raise FormatError(f"{cells.where}: gradient_bytes '{gradient}'; give 2 or 4")
    if gradient is None:
        gradient = cells.assume("gradient_bytes", start.gradient_bytes)
    return replace(
        start, precision=precision, runtime=runtime, flash=flash, gradient_bytes=gradient,
        sequence_parallel=cells.flag("sequence_parallel", start.sequence_parallel),
        overlap_tp="tp" in parts, overlap_dp="dp" in parts, overlap_p2p="p2p" in parts,
        fused=cells.flag("fused_kernels", start.fused),
        fused_norms=cells.flag("fused_norms", start.fused_norms),
        fused_loss=cells.flag("fused_loss", start.fused_loss),
    )  # fmt: skip


def _precision(text: str, where: str) -> str | None:
    """Return the precision that is part of a cell: ``"fp8-cs"`` is fp8; None for an empty one."""
    if not text:
        return None
    if "fp8-mx" in text:
        return "mxfp8"
    found = (name for name in ("nvfp4", "mxfp8", "fp8", "bf16", "fp16") if name in text)
    precision = next(found, None)
    if precision is None:
        raise ParameterError(f"{where}: precision '{text}' is not modeled")
    return precision


def _recompute(cells: Cells) -> tuple[str, tuple[str, ...]]:
    """Return the way to recompute, and the modules that a row names."""
    text, word = cells.text("recompute"), cells.word("recompute")
    if not text:
        return cells.assume("recompute", "none"), ()
    if word in ("none", "selective") or re.fullmatch(r"full(:[0-9]+)?", word):
        return word, ()
    words = (MODULES.get(part.strip(), part.strip()) for part in text.split(","))
    names = tuple(name for name in words if name in RECOMPUTE_MODULES)
    if not names:
        raise FormatError(f"{cells.where}: recompute '{text}'; give none, selective, full, or "
                          f"modules such as {', '.join(RECOMPUTE_MODULES[:3])}")  # fmt: skip
    return "selective", names


def _zero(cells: Cells, framework: str) -> int:
    """Return the stage that a cell begins with: 1 unless given.

    FSDP splits all, or gradients and optimizer states where weights are kept. What is called stage
    2 of Megatron-LM before Megatron-FSDP is its distributed optimizer, which scatters gradients
    once per step.
    """
    text = cells.text("zero")
    if not text:
        return cells.assume("zero", 1)
    if text.startswith("fsdp"):
        return 2 if "weights kept" in text else 3
    match = re.match(r"[0-3]", text)
    if match is None:
        raise FormatError(f"{cells.where}: zero '{text}'; give 0, 1, 2, 3 or FSDP")
    stage, year = int(match[0]), cells.whole("year") or MEGATRON_FSDP_YEAR
    early = runtime_of(framework or "megatron").name == "megatron" and year < MEGATRON_FSDP_YEAR
    return 1 if stage == 2 and early else stage
