"""Checks of a request before any search: value, limit, and the nearest choice that works.

Every suggested value is tried: there are plans with it, while all else stays as given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import islice
from math import prod
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.interchange.layouts import layout_text
from debubble.planner.candidate import RECOMPUTES, Candidate, Degrees, recomputed_layers
from debubble.planner.frameworks.any_rules import ANY_RULES
from debubble.planner.frameworks.rule import DEGREES, STATE, Rule, divisors
from debubble.planner.frameworks.table import FRAMEWORKS, broken, find_framework, rules_of
from debubble.planner.plannable import first_cut, plannable, why_not
from debubble.planner.request import (
    SIZES,
    Fixed,
    PlanRequest,
    check_precision,
    for_framework,
)
from debubble.planner.search.choices import ZEROS
from debubble.planner.search.groups import candidates, groups
from debubble.schedules import registry

OF_GPUS = ("tp", "cp", "dp", "pp")
"""Degrees whose product is the number of GPUs."""

SOME = 1000
"""Number of plans for which the framework's refusals are collected."""

TRIES = 24
"""Numbers of GPUs and of sequences that are tried around the ones given."""

SOME_CUTS = 8
"""Numbers of stages that are tried around the one given."""

WORDS = {"microbatch_size": "microbatch size", "schedules": "schedule", "gpus": "GPUs",
         "sequence_parallel": "sequence parallelism", "mtp": "MTP layers"}  # fmt: skip


def check_request(request: PlanRequest) -> None:
    """Refuse a request that no plan can meet, with value, limit and the nearest that works."""
    _check_words(request.fixed)
    _check_maker(request)
    check_precision(request.training.precision, request.cluster.gpu)
    given = {name: getattr(request.fixed, name) for name in SIZES}
    given |= {"batch": request.training.batch, "sequence": request.training.sequence}
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or value < 1):
            raise ParameterError(f"{WORDS.get(name, name)} is {value}; it is at least 1")
    for check in (_gpus, _degrees, _batch, _stages, _layers, _recompute, _rest):
        check(request)


def _check_words(fixed: Fixed) -> None:
    if fixed.framework is not None:
        find_framework(fixed.framework)
    for name in fixed.schedules or ():
        entry = registry.find(name)
        if reason := why_not(entry.name):
            hint = did_you_mean(entry.name, plannable())
            raise ParameterError(f"'{entry.name}' is not for plans: {reason}; {hint}")
    if fixed.recompute is not None:
        recomputed_layers(fixed.recompute)
    if fixed.zero is not None and fixed.zero not in ZEROS:
        near = min(max(fixed.zero, ZEROS[0]), ZEROS[-1])
        raise ParameterError(f"zero is {fixed.zero}; it goes from 0 to 3; the nearest is {near}")


def _check_maker(request: PlanRequest) -> None:
    """Check that the framework is for these GPUs."""
    name, gpu = request.fixed.framework, request.cluster.gpu
    if name is None or gpu.maker in find_framework(name).makers:
        return
    able = [row.name for row in FRAMEWORKS.values() if gpu.maker in row.makers]
    raise ParameterError(
        f"{find_framework(name).title} is not for {gpu.maker}'s GPUs such as {gpu.name}; the "
        f"nearest that works is framework {able[0]}"
    )


def _gpus(request: PlanRequest) -> None:
    """Check that degrees divide the GPUs, each and together."""
    total = request.cluster.gpus
    given = {name: value for name in OF_GPUS if (value := getattr(request.fixed, name))}
    for name, value in given.items():
        if total % value:
            _refuse(request, f"{name} {value} does not divide {total} GPUs", (name, "gpus"))
    together = prod(given.values())
    shown = " × ".join(f"{name} {value}" for name, value in given.items())
    if total % together:
        text = f"{shown} = {together} does not divide {total} GPUs"
        _refuse(request, text, (*given, "gpus"))
    if len(given) == len(OF_GPUS) and together != total:
        _refuse(request, f"{shown} are {together} GPUs of {total}", (*given, "gpus"))


def _degrees(request: PlanRequest) -> None:
    """Check the rules about degrees for those that are given."""
    fixed, model = request.fixed, request.model
    sizes = {name: getattr(fixed, name) or 1 for name in ("tp", "cp", "ep", "pp")}
    ranks = sizes["tp"] * sizes["cp"] * sizes["pp"]
    own = Degrees(**sizes, dp=fixed.dp or request.cluster.gpus // ranks)
    case = request.case(
        Candidate(own, 1, 1, "1f1b", first_cut(len(model.layers), own.pp, model.mtp))
    )
    case = replace(case, cluster=replace(case.cluster, gpus=own.gpus))
    for rule in rules_of(fixed.framework, DEGREES):
        problem = rule.check(case)
        if problem is not None:
            who = "" if rule in ANY_RULES else f"{fixed.framework} does not run this: "
            names = [one for one in problem.changes if one != "schedule"]
            _refuse(request, who + problem.text, names)


def _batch(request: PlanRequest) -> None:
    """Check that replicas and microbatches divide the batch, each and together."""
    batch, dp, size = (request.training.batch, request.fixed.dp, request.fixed.microbatch_size)
    for name, value in (("dp", dp), ("microbatch_size", size)):
        if value is not None and batch % value:
            text = f"{WORDS.get(name, name)} {value} does not divide a batch of {batch}"
            _refuse(request, text, (name, "batch"))
    if dp is not None and size is not None and batch % (dp * size):
        text = f"dp {dp} × microbatch size {size} = {dp * size} does not divide a batch of "
        _refuse(request, f"{text}{batch}", ("microbatch_size", "dp", "batch"))


def _stages(request: PlanRequest) -> None:
    """Check that stages have a layer each, but for the first and the last."""
    count, pp, chunks = (len(request.model.layers), request.fixed.pp, request.fixed.chunks)
    stages = (pp or 1) * (chunks or 1)
    if stages > count + 2:
        shown = " × ".join(
            f"{name} {value}" for name, value in (("pp", pp), ("chunks", chunks)) if value
        )
        text = (
            f"{shown} makes {stages} stages of {count} layers; embedding and head can be "
            f"stages of their own, so that {count + 2} are the most"
        )
        _refuse(request, text, ("pp", "chunks"))


def _layers(request: PlanRequest) -> None:
    """Check that given layers are the model's, on the given stages."""
    fixed, count, mtp = request.fixed, len(request.model.layers), request.model.mtp
    cut, pp, chunks = fixed.layers, fixed.pp, fixed.chunks
    if cut is None:
        return
    if sum(cut) != count or min(cut) < 0:
        text = f"layers {'/'.join(map(str, cut))} are {sum(cut)}, and the model has {count}"
        _refuse(request, text, ("layers",))
    if fixed.mtp not in (None, mtp):
        text = (
            f"the layout has {fixed.mtp or 'no'} m, layers of multi-token prediction, and the "
            f"model has {mtp or 'none'}"
        )
        stage = fixed.mtp_stage if mtp else None
        if _works(replace(request, fixed=replace(fixed, mtp=mtp, mtp_stage=stage))):
            near = layout_text(cut, mtp, stage)
            raise ParameterError(f"{text}; the nearest that works is layers '{near}'")
        _refuse(request, text, ("layers",))
    stages = (pp or 1) * (chunks or 1)
    if len(cut) % stages or (pp and chunks and len(cut) != stages):
        text = f"layers names {len(cut)} stages, which are not pp {pp or 'any'} × chunks "
        _refuse(request, f"{text}{chunks or 'any'}", ("pp", "chunks", "layers"))


def _recompute(request: PlanRequest) -> None:
    """Check that recomputed layers are at most the model's, and that a number is taken."""
    recompute, count = request.fixed.recompute, len(request.model.layers)
    layers = None if recompute is None else recomputed_layers(recompute)
    if recompute is None or layers is None:
        return
    if layers > count:
        text = f"recompute {recompute} of a model with {count} layers"
        _refuse(request, text, ("recompute",))
    one = Candidate(Degrees(), 1, 1, "1f1b", (count,), recompute)
    for rule in rules_of(request.fixed.framework, STATE):
        problem = rule.check(request.case(one))
        if problem is not None and "recompute" in problem.changes:
            _refuse(
                request, f"{problem.text}, is not for {request.fixed.framework}", ("recompute",)
            )


def _rest(request: PlanRequest) -> None:
    """Check that there is a plan."""
    if _works(request):
        return
    given = {spec.name: getattr(request.fixed, spec.name) for spec in fields(Fixed)}
    of_layout = ("mtp", "mtp_stage")
    given = {name: one for name, one in given.items() if one is not None and name not in of_layout}
    shown = ", ".join(_said(name, value) for name, value in given.items())
    gpus = request.cluster.gpus
    text = f"no plan has a batch of {request.training.batch} on {gpus} GPUs"
    text += f" with {shown}" if shown else ""
    if reasons := _reasons(request):
        text += f" ({request.fixed.framework} does not run this: {'; '.join(reasons)})"
    _refuse(request, text, (*given, "batch", "gpus"))


def _reasons(request: PlanRequest) -> list[str]:
    """Return the framework's refusals that all plans without it have in common."""
    if request.fixed.framework is None:
        return []
    free = replace(request, fixed=replace(request.fixed, framework=None))
    found: dict[Rule, str] | None = None
    for one in islice(candidates(free), SOME):
        problems = broken(free.case(one), request.fixed.framework)
        texts = {rule: problem.text for rule, problem in problems.items()}
        found = {rule: text for rule, text in (found or texts).items() if rule in texts}
        if not found:
            break
    return list((found or {}).values())


def _refuse(request: PlanRequest, text: str, names: Iterable[str]) -> None:
    """Raise an error with the nearest value of each of these options that works.

    Where none does, another framework is offered, if one was asked for.
    """
    found = [offer for name in names if (offer := _nearest(request, name))]
    if not found and request.fixed.framework is not None:
        offer = _nearest(request, "framework")
        found = [offer] if offer else []
    if found:
        verb = "works is" if len(found) == 1 else "work are"
        text += f"; the nearest that {verb} {', or '.join(found)}"
    else:
        text += "; leave out more of what is given"
    raise ParameterError(text)


def _nearest(request: PlanRequest, name: str) -> str | None:
    """Return an option with the nearest value that works, in words; None where none does."""
    for value in _values(request, name):
        if _works(_changed(request, name, value)):
            return _offer(request, name, value)
    return None


def _works(request: PlanRequest) -> bool:
    """Return whether any plan meets the request."""
    return next(groups(request), None) is not None


def _changed(request: PlanRequest, name: str, value: Any) -> PlanRequest:
    """Return the request with another value."""
    if name == "framework":
        return for_framework(request, value)
    owner = "fixed"
    if name == "gpus":
        owner = "cluster"
    elif name in ("batch", "sequence", "sequence_parallel", "precision", *STATES):
        owner = "training"
    elif name in ("mtp", "tied"):
        owner = "model"
    values = {name: value} | ({"mtp": None, "mtp_stage": None} if name == "layers" else {})
    part = replace(getattr(request, owner), **values)
    return replace(request, **{owner: part})


def _values(request: PlanRequest, name: str) -> list[Any]:
    """Return the values to try for an option, the nearest first."""
    if name == "layers":
        return [*_near_cuts(request), None]
    if name == "framework":
        return [*(one for one in FRAMEWORKS if one != request.fixed.framework), None]
    if name == "zero":
        return [None]
    if name == "recompute":
        return [one for one in reversed(RECOMPUTES) if one != request.fixed.recompute]
    if name == "schedules":
        return [(one,) for one in plannable()]
    if name == "precision":
        return NEAR_PRECISIONS.get(request.training.precision, ["bf16"])
    if name in USUAL:
        return [USUAL[name]]
    given = {"gpus": request.cluster.gpus, "batch": request.training.batch,
             "sequence": request.training.sequence}  # fmt: skip
    value = given[name] if name in given else getattr(request.fixed, name)
    if value is None:
        return []
    if name in OF_GPUS:
        found = set(divisors(request.cluster.gpus))
    elif name in given:
        found = set(range(max(value - TRIES, 1), value + TRIES + 1))
        unit = prod(getattr(request.fixed, size) or 1 for size in OF_GPUS)
        unit *= 2 * (request.fixed.microbatch_size or 1)
        found |= {max(value // unit + step, 1) * unit for step in (0, 1)}
        found |= {max(2 * value // unit + step, 1) * unit // 2 for step in (0, 1)}
        found |= {unit << power for power in range(24) if unit << power < 2 * value}
    elif name == "microbatch_size":
        found = set(divisors(request.training.batch))
    else:
        found = set(range(1, 2 * value + TRIES))
    return sorted(found - {value}, key=lambda one: (max(one, value) / min(one, value), one))


def _near_cuts(request: PlanRequest) -> list[tuple[int, ...]]:
    """Return cuts of all layers into as many stages as pp and chunks make, or near those given."""
    fixed, count = request.fixed, len(request.model.layers)
    unit = (fixed.pp or 1) * (fixed.chunks or 1)
    given = len(fixed.layers or ()) or 1
    numbers = [unit] if fixed.pp and fixed.chunks else range(unit, count + 3, unit)
    near = sorted(numbers, key=lambda one: (max(one, given) / min(one, given), one))
    found = (first_cut(count, stages, request.model.mtp) for stages in near[:SOME_CUTS])
    return [cut for cut in found if cut != fixed.layers]


def _offer(request: PlanRequest, name: str, value: Any) -> str:
    """Return an option with a value that works, in the form in which it was given."""
    if name == "layers" and value is not None and request.fixed.mtp is not None:
        return f"layers '{layout_text(value, request.model.mtp)}'"
    return _said(name, value)


STATES = {
    "gradient_bytes": (4, "gradients fp32"), "moment_bytes": (4, "moments fp32"),
    "weights": ("bf16", "weights bf16"),
    "offload_optimizer": (False, "offload none"), "graph_pools": (0.0, "graph pools 0"),
}  # fmt: skip
"""Fields of trainings on what is kept, each with its usual value, also in words."""

USUAL: dict[str, Any] = {"sequence_parallel": True, "mtp": 0, "tied": False} | {
    name: value for name, (value, _) in STATES.items()
}
"""Values that every framework takes, of what only has one such."""

NEAR_PRECISIONS = {"nvfp4": ["mxfp8", "fp8", "bf16"], "mxfp8": ["fp8", "bf16"]}
"""Precisions near another one; bf16 is near all."""


def _said(name: str, value: Any) -> str:
    """Return an option with its value, in words."""
    if name in STATES:
        return STATES[name][1]
    if value is None:
        return f"any {name}"
    if name == "gpus":
        return f"{value} GPUs"
    if name in ("batch", "sequence"):
        return f"a {name} of {value}"
    if isinstance(value, tuple):
        return f"{WORDS.get(name, name)} {'/'.join(map(str, value))}"
    if isinstance(value, bool):
        return f"{WORDS.get(name, name)} {'on' if value else 'off'}"
    return f"{WORDS.get(name, name)} {value}"
