"""What varies from step to step, read from the options of a command."""

from __future__ import annotations

import math
from typing import Any

from debubble.core.errors import ParameterError
from debubble.core.units import read_number
from debubble.engine.jitter import DISTRIBUTIONS, MAX_REPLICAS, MAX_SAMPLES, Jitter
from debubble.interchange.text import read_count


def read_jitter(
    times: str | None,
    samples: str | None = None,
    seed: str | None = None,
    replicas: str | None = None,
    slow: list[str] | None = None,
) -> Jitter | None:
    """What varies, from the texts of the options; None where none of them is there."""
    if times is None and slow is None:
        for flag, text in (("--samples", samples), ("--seed", seed), ("--replicas", replicas)):
            if text is not None:
                raise ParameterError(
                    f"{flag} is {text}, and nothing varies; add --jitter normal:3%, or --slow"
                )
        return None
    given: dict[str, Any] = {}
    if samples is not None:
        given["samples"] = read_count("--samples", samples, 1, MAX_SAMPLES)
    if seed is not None:
        given["seed"] = read_count("--seed", seed, 0, 999_999_999)
    if replicas is not None:
        given["replicas"] = read_count("--replicas", replicas, 1, MAX_REPLICAS)
        # Fewer know little of the slowest copy.
        given.setdefault("samples", min(max(1000, 10 * given["replicas"]), MAX_SAMPLES))
    return Jitter(_times(times), slow=_slow(slow or []), **given)


def _times(text: str | None) -> Any:
    """A distribution as it is; all else is the name of a file."""
    if text is None or text.partition(":")[0].strip() in DISTRIBUTIONS:
        return text
    from debubble.interchange.files import is_file_name
    from debubble.interchange.jitter import read_times

    looks_like_a_file = "/" in text or "." in text or is_file_name(text)
    return read_times(text) if looks_like_a_file else text


def _slow(pairs: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for piece in (piece for pair in pairs for piece in pair.split(",")):
        where, equals, factor = (word.strip() for word in piece.partition("="))
        number = read_number(factor)
        if not equals or math.isnan(number):
            raise ParameterError(
                f"--slow is '{piece}'; give what is slow, and how many times as long it takes: "
                "rank2=1.2"
            )
        if where in found:
            raise ParameterError(f"--slow: {where} is there twice; give it once")
        found[where] = number
    return found
