"""Measured times and bytes of stages, and their cost file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from debubble.analysis import layout
from debubble.core.units import amount, rough_percent

WIDE = 0.25
"""Distance of quartiles, as a share of the median, from which on the table warns."""

DIGITS = 6
"""Significant digits of numbers in files; no clock is better."""


@dataclass(frozen=True)
class Quartiles:
    """Quartiles of a time in milliseconds."""

    lower: float
    median: float
    upper: float

    @property
    def width(self) -> float:
        """Distance of the quartiles as a share of the median."""
        return (self.upper - self.lower) / self.median if self.median else 0.0

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quartiles:
        """Return the quartiles of at least one sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        return cls(*quantiles(samples, n=4, method="inclusive"))


@dataclass(frozen=True)
class StageMeasures:
    """Times and bytes of one stage, or one layer of it, for one microbatch."""

    times: Mapping[str, Quartiles]
    """Times of F, I, W and B, as far as measured, in milliseconds."""
    saved: int | None = None
    """Bytes held from F to B: tensors that autograd saves, and the inputs."""
    kept_for_weight: int | None = None
    """Bytes held from I to W: what W needs of the forward, and gradients of the layers' outputs.

    Without attention, the gradients may exceed what I released; as a share of `saved` it is then 1,
    up to a fifth too low.
    """
    inputs: int | None = None
    """Bytes of the inputs, which are all that is held where the stage is recomputed."""
    message: int | None = None
    """Bytes that go to the next stage."""
    weights: int | None = None
    """Bytes of the parameters."""
    gradients: int | None = None
    """Bytes of the parameters' gradients."""
    peak: int | None = None
    """Peak of bytes beyond the weights during F and B by the allocator's count, on CUDA."""
    fused: str = ""
    """Reason why the backward is not split: I then is the whole backward and W nothing; empty where
    it is split."""
    split: str = ""
    """Gain of splitting the backward, in words."""
    layers: tuple[StageMeasures, ...] = field(default=(), repr=False)
    """Measures of every layer, where the stage is a list of layers."""

    def time(self, kind: str) -> float | None:
        """Return the median time of F, I, W or B in milliseconds, None if unknown."""
        if self.fused and kind in "IW":
            return self.time("B") if kind == "I" else 0.0
        return self.times[kind].median if kind in self.times else None

    @property
    def varies(self) -> float:
        """Largest distance of the quartiles of a time in milliseconds."""
        return max((spread.upper - spread.lower for spread in self.times.values()), default=0.0)

    def share(self, name: str) -> float | None:
        """Return `kept_for_weight` or `recompute_kept` as a share of the bytes held after F."""
        if self.fused and name == "kept_for_weight":
            return 0.0
        size = self.kept_for_weight if name == "kept_for_weight" else self.inputs
        if size is None or self.saved is None:
            return None
        return min(1.0, size / self.saved) if self.saved else 0.0


TIMES = ("F", "I", "W", "B")
SHARES = ("kept_for_weight", "recompute_kept")


def cost_data(
    stages: Sequence[StageMeasures],
    *,
    ranks: int | None = None,
    chunks: int | None = None,
    microbatches: int | None = None,
    name: str = "",
    source: str = "",
) -> dict[str, Any]:
    """Return the data of a cost file, see :func:`debubble.interchange.cost_files.load_costs`.

    Times are in milliseconds and memory in bytes, one number per stage, in forward order; those not
    measured for every stage are left out. Sizes are defaults for commands that read the file.
    """
    labels = {"name": name, "source": source, "ranks": ranks, "chunks": chunks,
              "microbatches": microbatches}  # fmt: skip
    data: dict[str, Any] = {key: value for key, value in labels.items() if value}
    # On the first stage both engines leave the whole backward to W.
    data |= {"basis": "action", "runtime": "torch", "time_unit": "ms", "times": _times(stages)}
    if messages := [stage.message for stage in stages[:-1] if stage.message is not None]:
        data["times"]["message"] = max(messages)
    memory = _memory(stages)
    if memory:
        data["memory"] = {"unit": "bytes"} | memory
    if all(stage.layers for stage in stages):
        data["layers"] = _layers(stages)
    data["measured"] = _measured(stages)
    return data


def _times(stages: Sequence[StageMeasures]) -> dict[str, Any]:
    found = {kind: [stage.time(kind) for stage in stages] for kind in TIMES}
    return {kind: [_short(time) for time in times if time is not None]
            for kind, times in found.items() if None not in times}  # fmt: skip


def _memory(stages: Sequence[StageMeasures]) -> dict[str, Any]:
    memory: dict[str, Any] = {}
    if all(stage.saved is not None for stage in stages):
        memory["activation"] = [stage.saved for stage in stages]
    for share in SHARES:
        found = [stage.share(share) for stage in stages]
        if None not in found:
            memory[share] = [_short(value) for value in found if value is not None]
    return memory


def _layers(stages: Sequence[StageMeasures]) -> dict[str, Any]:
    """Return the costs of layers, and those of the first and last stage beyond their layers."""
    layers = [layer for stage in stages for layer in stage.layers]
    found = _times(layers) | _memory(layers)
    for end, stage in (("embedding", stages[0]), ("head", stages[-1])):
        part = {}
        for kind in TIMES:
            whole, inner = stage.time(kind), [layer.time(kind) for layer in stage.layers]
            if whole is not None and None not in inner:
                part[kind] = whole - sum(time for time in inner if time)
        if end == "embedding" and "I" in part:
            # The first stage does its whole backward in W, even if its layers have I and W.
            part["I"], part["W"] = 0.0, part["I"] + part["W"]
        # A difference within the quartiles is no work of its own.
        part = {kind: _short(time) if time > stage.varies else 0.0 for kind, time in part.items()}
        if stage.saved is not None:
            left = stage.saved - sum(layer.saved or 0 for layer in stage.layers)
            part["activation"] = max(0, left)
        if any(part.values()) and (len(stages) > 1 or end == "head"):
            found[end] = part
    return found


def _measured(stages: Sequence[StageMeasures]) -> dict[str, Any]:
    """Return measures that are no costs: quartiles, other bytes, and the gain of splitting."""
    found: dict[str, Any] = {}
    quartiles = {
        kind: [[_short(spread.lower), _short(spread.upper)] for spread in spreads if spread]
        for kind in TIMES
        if all(spreads := [stage.times.get(kind) for stage in stages])
    }
    if quartiles:
        found["quartiles"] = quartiles
    for name in ("message", "weights", "gradients", "peak"):
        values = [getattr(stage, name) for stage in stages]
        if any(value is not None for value in values):
            found[name] = values
    if any(stage.split for stage in stages):
        found["split"] = [stage.split for stage in stages]
    return found


def measures_table(stages: Sequence[StageMeasures]) -> str:
    """Return times and bytes of stages as a text table, and the gain of splitting."""
    rows = [["stage", *(f"{kind} ms" for kind in TIMES), "after F", "after I", "inputs", "weights"]]
    for number, stage in enumerate(stages):
        times = [_with_quartiles(stage.times.get(kind)) for kind in TIMES]
        sizes = (stage.saved, stage.kept_for_weight, stage.inputs, stage.weights)
        texts = ("–" if size is None else amount(size, "bytes") for size in sizes)
        rows.append([str(number), *times, *texts])
    lines = layout.table(rows, left=())
    lines += [f"stage {number}: {stage.split}" for number, stage in enumerate(stages)]
    widest = max(spread.width for stage in stages for spread in stage.times.values())
    if widest > WIDE:
        lines.append(
            f"quartiles of a time are up to {rough_percent(widest)} of it apart; measure on an "
            "idle machine, or with more steps"
        )
    return "\n".join(lines)


def _with_quartiles(spread: Quartiles | None) -> str:
    if spread is None:
        return "–"
    return f"{spread.median:.3g} ({spread.lower:.3g}–{spread.upper:.3g})"


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
