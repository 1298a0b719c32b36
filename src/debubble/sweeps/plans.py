"""The command ``plan`` of sweeps: the best plan at every point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from debubble.core.errors import ParameterError
from debubble.core.options import Real, Whole, Word
from debubble.planner.ask import LARGEST, ask
from debubble.planner.candidate import PRECISIONS, recomputed_layers
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.hardware.cluster import find_gpu
from debubble.planner.model.files import ENDINGS, read_model
from debubble.planner.request import SIZES, check_request
from debubble.planner.search.best_plans import best_plans
from debubble.planner.search.evaluate import relative_error, speed
from debubble.planner.search.groups import ZEROS, Fixed
from debubble.sweeps.parameters import Parameter, Parameters, schedule_name

CHOSEN = ("microbatch_size", "microbatches", "schedule", "recompute", "zero")
"""Fields of a plan that are results by the same names."""

HELD = (*SIZES, "recompute", "zero", "framework")


def plan(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the best plan that fits, as one row of results."""
    asked = ask(
        options["model"], options["gpu"], options["gpus"], options["batch"], options["seq"],
        precision=options.get("precision", "bf16"), memory=options.get("memory"),
        imbalance=options.get("imbalance", 1.0), framework=options.get("framework"),
    )  # fmt: skip
    held = {name: options[name] for name in HELD if name in options}
    if "schedules" in options:
        held["schedules"] = tuple(options["schedules"])
    fixed = Fixed(**held)
    check_request(asked.model, asked.cluster, asked.training, fixed)
    found = best_plans(asked, fixed, 1)
    if not found.plans:
        raise ParameterError(f"no plan fits into {asked.limit / 1e9:.1f} GB")
    best = found.plans[0]
    candidate, fast = best.candidate, speed(asked, best.step_time)
    return [
        asdict(candidate.degrees) | {
            **{name: getattr(candidate, name) for name in CHOSEN},
            "step_time": best.step_time,
            "step_time_error": relative_error(asked, best) * best.step_time,
            "tokens_per_second": fast.tokens_per_second, "mfu": fast.mfu["causal"],
            "bubble_ratio": best.bubble_ratio, "peak": max(best.peaks),
        }
    ]  # fmt: skip


def _files(value: str) -> list[str]:
    return [value] if value.lower().endswith(ENDINGS) else []


def _model(name: str, value: Any) -> str:
    text = _text(name, value, "llama-3.1-8b")
    if not _files(text):
        read_model(text)
    return text


def _gpu(name: str, value: Any) -> str:
    text = _text(name, value, "h100")
    return text if _files(text) else find_gpu(text).name


def _memory(name: str, value: Any) -> str:
    return _text(name, str(value) if isinstance(value, int | float) else value, "72GB")


def _text(name: str, value: Any, example: str) -> str:
    if not isinstance(value, str) or not value:
        raise ParameterError(f"{name} is {value!r}; give a text such as {example}")
    return value


def _recompute(_: str, value: Any) -> str:
    recomputed_layers(str(value))
    return str(value)


def _schedules(name: str, value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    return [schedule_name(name, item) for item in names]


PLAN: Parameters = {
    "model": Parameter(_model, files=_files),
    "gpu": Parameter(_gpu, files=_files),
    "gpus": Whole(LARGEST),
    "batch": Whole(LARGEST),
    "seq": Whole(LARGEST),
    **{name: Whole(LARGEST) for name in SIZES},
    "schedules": Parameter(_schedules),
    "recompute": Parameter(_recompute),
    "zero": Whole(ZEROS[-1], 0),
    "precision": Word(tuple(PRECISIONS)),
    "framework": Word(tuple(FRAMEWORKS)),
    "memory": Parameter(_memory),
    "imbalance": Real(0.0, 1000.0),
}
REQUIRED = ("model", "gpu", "gpus", "batch", "seq")
