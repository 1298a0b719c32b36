"""What the frameworks refuse, rule by rule, with the nearest value that works.

Each rule is a row of :data:`RULES`: what it is called, who enforces it and where, and a check that
says what is wrong and what to change. Rules of ``"any"`` hold for every plan, because the batch,
the model and the GPUs have to be divided. :func:`broken` is what everybody else calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import placement_of
from debubble.schedules.registry import find

if TYPE_CHECKING:
    from debubble.planner.hardware.cluster import Cluster

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


@dataclass(frozen=True)
class Problem:
    """What is wrong with a case by a rule: the value, the limit, and who has it.

    `changes` are the nearest values with which the rule holds, by name: a degree, or a field of
    candidate, training or model.
    """

    text: str
    changes: Mapping[str, Any]
    rule: str = ""

    @property
    def nearest(self) -> str:
        """The changes in words, such as "the nearest that works is tp 4"."""
        shown = (f"{_WORDS.get(name, name)} {_shown(one)}" for name, one in self.changes.items())
        return f"the nearest that works is {' with '.join(shown)}"

    def __str__(self) -> str:
        return f"{self.text}; {self.nearest}"


@dataclass(frozen=True)
class Rule:
    """One thing that is refused, and what is wrong with a case where it is.

    `options` has by framework the option that is refused or the function that does it; `scope` says
    what the rule looks at, see :data:`DEGREES`.
    """

    name: str
    options: Mapping[str, str]
    scope: str
    check: Callable[[Case], Problem | None]


def check_framework(name: str) -> str:
    """The name of a framework in lower case; any but :data:`FRAMEWORKS` is refused."""
    wanted = str(name).strip().lower()
    if wanted not in FRAMEWORKS:
        raise ParameterError(f"unknown framework '{name}'; {did_you_mean(wanted, FRAMEWORKS)}")
    return wanted


@cache
def rules_of(framework: str | None, scope: str | None = None) -> tuple[Rule, ...]:
    """The rules of a framework, or those of any plan; of one scope, or of all."""
    from debubble.planner.frameworks.any_rules import ANY_RULES
    from debubble.planner.frameworks.megatron.rules import MEGATRON_RULES
    from debubble.planner.frameworks.torch_rules import TORCH_RULES

    name = ANY if framework is None else check_framework(framework)
    return tuple(
        rule
        for rule in (*ANY_RULES, *MEGATRON_RULES, *TORCH_RULES)
        if (name in rule.options or ANY in rule.options) and scope in (None, rule.scope)
    )


def broken(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    framework: str | None = None,
) -> list[Problem]:  # fmt: skip
    """What is wrong with a candidate by the rules of a framework; without one, by those of any.

    A framework or schedule that there is not is refused with a :class:`ParameterError`.
    """
    return broken_rules(Case.of(model, cluster.gpus, training, candidate), framework)


def broken_rules(case: Case, framework: str | None = None) -> list[Problem]:
    """What is wrong with a case."""
    checked = ((rule, rule.check(case)) for rule in rules_of(framework))
    return [replace(problem, rule=rule.name) for rule, problem in checked if problem is not None]


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
