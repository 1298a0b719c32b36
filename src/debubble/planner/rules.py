"""What the frameworks refuse, rule by rule, with the nearest value that works.

Each rule is a row of :data:`RULES`: what it is called, who enforces it and where, and a check that
says what is wrong and what to change. Rules of ``"any"`` hold for every plan, because the batch,
the model and the GPUs have to be divided. :func:`broken` is what everybody else calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.model import Model
from debubble.planner.orders import first_cut, placement_of
from debubble.schedules.registry import find

if TYPE_CHECKING:
    from debubble.planner.cluster import Cluster

RUNTIMES = {"megatron": "megatron", "torchtitan": "torch", "automodel": "torch"}
"""By framework, who keeps weights, activations and buffers, as in
:class:`~debubble.planner.candidate.Training`: two of them run PyTorch's pipelines on FSDP2."""

FRAMEWORKS = tuple(RUNTIMES)

ANY = "any"
"""Whoever runs it."""

DEGREES, ORDER, STATE = "degrees", "order", "state"
"""What a rule looks at beside model and training: tp, cp, ep, dp and pp with the number of GPUs;
schedule, stages and microbatches, too; or recompute and ZeRO, too."""


@dataclass(frozen=True)
class Case:
    """What rules look at: a candidate, and what it is one for."""

    model: Model
    gpus: int
    training: Training
    candidate: Candidate

    @classmethod
    def of(cls, model: Model, gpus: int, training: Training, candidate: Candidate) -> Case:
        """A case whose schedule has its registered name, where an alias was given."""
        name = find(candidate.schedule).name
        own = candidate if name == candidate.schedule else replace(candidate, schedule=name)
        return cls(model, gpus, training, own)

    @property
    def degrees(self) -> Degrees:
        """The candidate's degrees."""
        return self.candidate.degrees

    @property
    def placement(self) -> Placement:
        """Where the candidate's schedule has its stages."""
        degrees = self.degrees
        return placement_of(self.candidate.schedule, degrees.pp, degrees.chunks)

    @property
    def experts(self) -> int:
        """Experts of a layer that has some, 0 without."""
        return self.model.experts

    def changed(self, changes: Mapping[str, Any]) -> Case:
        """The case with other values: of degrees, candidate, training, ``gpus``, or the model.

        Layers are cut anew where stages change.
        """
        parts: dict[str, dict[str, Any]] = {"degrees": {}, "candidate": {}, "training": {},
                                            "model": {}, "case": {}}  # fmt: skip
        for name, value in changes.items():
            parts[_OWNERS[name]][name] = value
        degrees = replace(self.degrees, **parts["degrees"])
        model = replace(self.model, **parts["model"])
        cut = first_cut(len(model.layers), degrees.stages, model.mtp)
        same = degrees.stages == self.degrees.stages
        own = {"layers": self.candidate.layers if same else cut, **parts["candidate"]}
        return replace(
            self,
            model=model,
            training=replace(self.training, **parts["training"]),
            candidate=replace(self.candidate, degrees=degrees, **own),
            **parts["case"],
        )


_OWNERS = {
    **{spec.name: "training" for spec in fields(Training)},
    **{spec.name: "candidate" for spec in fields(Candidate)},
    **{spec.name: "degrees" for spec in fields(Degrees)},
    "mtp": "model", "tied": "model", "gpus": "case",
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the changes after which the rule holds: nearest values, by name."""

    text: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """One thing that is refused.

    Parameters
    ----------
    name
        What it is about.
    options
        By framework, the option that it refuses or the function that does.
    scope
        What it looks at, see :data:`DEGREES`.
    check
        What is wrong with a case, None where nothing is.
    """

    name: str
    options: Mapping[str, str]
    scope: str
    check: Callable[[Case], Problem | None]


@dataclass(frozen=True)
class Broken:
    """A rule that a candidate breaks.

    Parameters
    ----------
    rule
        Its name.
    text
        The value, the limit, and who has it.
    nearest
        The nearest choice that works, in words.
    changes
        The same as values, by name: a degree, or a field of candidate, training or model.
    """

    rule: str
    text: str
    nearest: str
    changes: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.text}; {self.nearest}"


def check_framework(name: str) -> str:
    """The name of a framework, in lower case.

    Raises
    ------
    ParameterError
        When it is none that rules and flags are known of.
    """
    wanted = str(name).strip().lower()
    if wanted not in FRAMEWORKS:
        raise ParameterError(f"unknown framework '{name}'; {did_you_mean(wanted, FRAMEWORKS)}")
    return wanted


@cache
def rules_of(framework: str | None, scope: str | None = None) -> tuple[Rule, ...]:
    """The rules of a framework, or those of any plan; of one scope, or of all."""
    from debubble.planner.rules_any import ANY_RULES
    from debubble.planner.rules_megatron import MEGATRON_RULES
    from debubble.planner.rules_torch import TORCH_RULES

    name = ANY if framework is None else check_framework(framework)
    return tuple(
        rule
        for rule in (*ANY_RULES, *MEGATRON_RULES, *TORCH_RULES)
        if (name in rule.options or ANY in rule.options) and scope in (None, rule.scope)
    )


def broken(
    model: Model,
    cluster: Cluster,
    training: Training,
    candidate: Candidate,
    framework: str | None = None,
) -> list[Broken]:
    """The rules that a candidate breaks.

    Parameters
    ----------
    model, cluster, training, candidate
        What is to be run.
    framework
        ``"megatron"``, ``"torchtitan"`` or ``"automodel"``; without one, only what any breaks on.

    Raises
    ------
    ParameterError
        When there is no such framework, or schedule.
    """
    return broken_rules(Case.of(model, cluster.gpus, training, candidate), framework)


def broken_rules(case: Case, framework: str | None = None) -> list[Broken]:
    """The rules that a case breaks."""
    found = []
    for rule in rules_of(framework):
        problem = rule.check(case)
        if problem is not None:
            changes = tuple(problem.changes.items())
            found.append(Broken(rule.name, problem.text, nearest_text(changes), changes))
    return found


def nearest_text(changes: tuple[tuple[str, Any], ...]) -> str:
    """Changes in words, such as "the nearest that works is tp 4"."""
    shown = " with ".join(f"{_WORDS.get(name, name)} {_shown(value)}" for name, value in changes)
    return f"the nearest that works is {shown}"


_WORDS = {
    "microbatch_size": "microbatch size", "gpus": "GPUs", "sequence_parallel": "sequence parallel",
    "zero": "ZeRO", "tied": "tied embeddings", "mtp": "MTP layers", "moment_bytes": "moments of",
}  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number, ascending."""
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return tuple(dict.fromkeys([*small, *(number // k for k in reversed(small))]))


def nearest_of(value: int, allowed: tuple[int, ...]) -> int:
    """The allowed number nearest to a value, by ratio; the smaller of two."""
    return min(allowed, key=lambda one: (max(one, value) / min(one, value), one))


def nearest_multiple(value: int, unit: int) -> int:
    """The multiple of a number nearest to a value, at least one; the larger of two."""
    return max(round(value / unit + 1e-9), 1) * unit
