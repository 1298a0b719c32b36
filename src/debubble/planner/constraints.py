"""What is held fixed and what was measured, from texts: options, or fields of a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.interchange.text import read_count
from debubble.planner.ask import LARGEST
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.cost.calibration_files import DEGREES, calibrate_from
from debubble.planner.search.evaluate import Asked
from debubble.planner.search.groups import Fixed, candidates

_LIKE = {"schedule": "1f1b", "recompute": "full", "layers": "7,8,8,9"}
"""Values to show, of what is no number."""

Texts = Mapping[str, str | None]
"""Options by name, such as ``tp`` or ``schedule``; None where nothing is given."""


def held(given: Texts, framework: str | None) -> Fixed:
    """What is held fixed; a value that is no number, list or word of its option is refused."""
    found: dict[str, Any] = {"framework": framework}
    for name, text in given.items():
        flag = f"--{name.replace('_', '-')}"
        if text is None:
            continue
        if name == "schedule":
            found["schedules"] = tuple(part.strip() for part in text.split(","))
        elif name == "layers":
            found[name] = _counts(flag, text)
        elif name == "recompute":
            try:
                recomputed_layers(text)
            except ParameterError as error:
                raise ParameterError(f"--{error}") from None
            found[name] = text
        else:
            least, most = (0, 3) if name == "zero" else (1, LARGEST)
            found[name] = read_count(flag, text, least, most)
    return Fixed(**found)


def held_with(given: Texts, text: str, framework: str | None) -> Fixed:
    """What is held fixed when one thing more is, such as ``"pp=16"``."""
    key, equals, value = text.partition("=")
    name = key.strip().replace("-", "_")
    if not equals and name in given:
        like = _LIKE.get(name, "2")
        raise ParameterError(f"--why is '{text}'; give a value, too, such as {name}={like}")
    if not equals or name not in given:
        hint = did_you_mean(name, list(given))
        raise ParameterError(f"--why is '{text}'; give a key and a value, such as pp=16: {hint}")
    return held({**given, name: value.strip()}, framework)


def with_measured_steps(asked: Asked, path: str, fixed: Fixed, text: str | None = None) -> Asked:
    """The question with what was measured; logs and profiles are of the only plan that is left.

    `path` is a file of :func:`~debubble.planner.cost.calibration_files.calibrate_from`, whose
    ending says what it is, and `text` what is in it, where it is not to be read.
    """
    left = list(islice(candidates(asked.model, asked.cluster, asked.training, fixed), SOME))
    factors = calibrate_from(
        path, asked.factors, asked.model, asked.cluster, asked.training,
        left[0] if len(left) == 1 else None, text, open_options(left),
    )  # fmt: skip
    return replace(asked, factors=factors)


SOME = 10_000
"""Candidates that are looked at for what they differ in."""


def open_options(left: Sequence[Candidate]) -> tuple[str, ...]:
    """Options in which candidates differ, so that none of them is what ran."""
    names = (*DEGREES, "microbatch_size", "schedule", "recompute", "zero")
    values = [vars(one) | vars(one.degrees) for one in left]
    differ = (name for name in names if len({each[name] for each in values}) > 1)
    return tuple(f"--{name.replace('_', '-')}" for name in differ)


def _counts(flag: str, text: str) -> tuple[int, ...]:
    parts = [part.strip(" ") for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise ParameterError(f"{flag} is '{text}'; give a number for every stage, such as 7,8,8,9")
    return tuple(map(int, parts))
