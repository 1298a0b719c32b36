"""Text report of a diagnosis for a terminal: one screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from debubble.analysis.layout import Column, definitions, text_table, wrap
from debubble.analysis.metrics import ranges
from debubble.core.units import counted, number
from debubble.diagnosis.account import CAUSES
from debubble.diagnosis.diagnose import Diagnosis
from debubble.diagnosis.findings import TRUSTED, Finding, nothing
from debubble.diagnosis.what_if import WhatIf, faster

NO_MODE = 0.3
"""Maximum mean distance of starts, as a share of a typical action, for a p2p mode that fits."""

APART = 0.05
"""Maximum error of a prediction without a word about it, as a share of a step."""

DOUBTFUL = 0.1
"""Minimum error of a gain that is given as a range, as a share of a step."""

LISTED_RANKS = 12
"""Maximum number of ranks with a line each."""

LISTED_FINDINGS = 5
LISTED_LINES = 3

LEAST_SHARE = 5e-4
"""Minimum share of a step of a cause with a column."""

NOT_QUITE = "not quite"
ACCOUNT_TITLE = "Where the time of a mean step went, in ms"

Style = Callable[[str, str], str]


def report(found: Diagnosis, width: int, style: Style | None = None) -> str:
    """Return a report of a run, its causes and gains, in lines of a given width."""
    paint: Style = style or (lambda text, _: text)
    lines = [*_head(found, width, paint), ""]
    lines += [*_findings(found, width, paint), ""]
    lines += [*_account(found, width, paint), ""]
    lines += definitions([(name, "", text) for name, text in facts(found)], width)
    return "\n".join(lines)


def sentences(found: Diagnosis) -> Iterator[str]:
    """Return sentences on the schedule and the time of a step."""
    schedule, run = found.schedule, found.run
    copies = found.observed.copies
    sizes = [counted(schedule.ranks, "rank")]
    sizes += [f"{copies} copies"] if copies > 1 else []
    sizes += [counted(schedule.stages, "stage"), counted(schedule.microbatches, "microbatch"),
              counted(len(run.step_times), "step")]  # fmt: skip
    yield f"{found.name.text}: {', '.join(sizes)}"
    if found.name.differences:
        yield f"{NOT_QUITE} {found.name.text}: {found.name.differences[0]}"
    elif found.name.text == "custom":
        yield "no registered schedule, nor near one"
    times = run.step_times * 1e3
    span = f"; {number(float(times.min()), 4)} to {number(float(times.max()), 4)}"
    span = span if len(times) > 1 else ""
    text = (
        f"a step takes {number(float(np.median(times)), 4)} ms (median{span}); ranks idle "
        f"{100 * found.bubble_ratio:.1f} % of it"
    )
    if not np.isnan(run.start).any():
        text += f", {100 * found.planned_bubble_ratio:.1f} % by the schedule at median times"
    yield text


def _head(found: Diagnosis, width: int, paint: Style) -> Iterator[str]:
    name, *others = sentences(found)
    first, *rest = wrap(name, width)
    yield paint(first, "head")
    yield from rest
    for text in others:
        yield from wrap(text, width, 2 if text.startswith(NOT_QUITE) else 0)


def _findings(found: Diagnosis, width: int, paint: Style) -> Iterator[str]:
    if found.replay_error > TRUSTED:
        yield from wrap(untrusted(found), width)
    elif not found.findings:
        yield paint(nothing(found.beyond, len(found.run.step_times)), "best")
    for place, one in enumerate(found.findings[:LISTED_FINDINGS], 1):
        for line in wrap(f"{place}  {one.cause}: {gain_text(one)}", width, 3):
            yield paint(line, "head")
        yield from (f"   {line}" for line in wrap(f"{one.text}. {one.advice}.", width - 3))
    more = len(found.findings) - LISTED_FINDINGS
    if more > 0:
        yield f"and {more} more, see --json"
    others = faster_schedules(found, hint=True)
    if others:
        yield from wrap(others, width, 2)


def faster_schedules(found: Diagnosis, hint: bool = False) -> str:
    """Return lines on schedules that would be faster, with a hint; empty if there is none."""
    others = faster(found.replay) if found.replay_error <= TRUSTED else []
    if not others:
        return ""
    names = ", ".join(
        f"{one.text} {_milliseconds(one.after)} ms (−{100 * one.gain:.0f} %)"
        for one in others[:LISTED_LINES]
    )
    more = f"; --schedule {others[0].text} says more" if hint else ""
    before = _milliseconds(others[0].before)
    return f"Other schedules at these times, not {before} ms: {names}{more}{_caution(others[0])}"


def untrusted(found: Diagnosis) -> str:
    """Return the reason for a report without gains."""
    return (
        f"replayed steps are {100 * found.replay_error:.1f} % off: gains are not told above "
        f"{100 * TRUSTED:.0f} %"
    )


def gain_text(one: Finding) -> str:
    """Return the gain in words, with its share of the run."""
    there = "everywhere" if one.persistence > 0.99 else f"in {100 * one.persistence:.0f} %"
    there += "" if one.persistence > 0.99 else " of steps and copies"
    if one.gain is None:
        return f"about {number(one.seconds * 1e3, 3)} ms a step, {there}"
    if one.error > DOUBTFUL:
        low, high = (100 * min(max(one.gain + by, 0.0), 1.0) for by in (-one.error, one.error))
        return (
            f"{low:.0f} to {high:.0f} % to gain, {there}: with one time for every link, a step is "
            f"{100 * one.error:.0f} % off"
        )
    before, after = _milliseconds(one.before), _milliseconds(one.before - one.seconds)
    return f"{100 * one.gain:.1f} % to gain, {before} → {after} ms a step, {there}"


def account_columns(found: Diagnosis, most: int) -> list[Column]:
    """Return columns in ms for every cause, with lines for all ranks or at most `most`."""
    accounts = found.accounts
    chosen = accounts
    if len(accounts) > most:
        at = np.unique(np.linspace(0, len(accounts) - 1, most).astype(int))
        chosen = tuple(accounts[index] for index in at.tolist())
    least = LEAST_SHARE * max(one.step for one in accounts)
    causes = [
        cause for cause in CAUSES if max(one.causes.get(cause, 0.0) for one in accounts) > least
    ]
    mean = {cause: sum(one.causes.get(cause, 0.0) for one in accounts) for cause in causes}
    order = sorted(causes, key=lambda cause: -mean[cause])
    columns = [
        Column(("rank",), tuple(str(one.rank) for one in chosen), left=True),
        Column(("compute",), tuple(_ms(one.compute, one.step) for one in chosen)),
    ]
    for cause in causes:
        cells = tuple(_ms(one.causes.get(cause, 0.0), one.step) for one in chosen)
        columns.append(Column(tuple(cause.split("-")), cells, rank=1 + order.index(cause)))
    return columns


def _account(found: Diagnosis, width: int, paint: Style) -> Iterator[str]:
    columns = account_columns(found, LISTED_RANKS)
    blocks, left_out = text_table(columns, width)
    yield paint(ACCOUNT_TITLE, "head")
    yield from (line for block in blocks for line in block)
    if left_out:
        yield from wrap(f"without {', '.join(left_out)}, for which there is no room", width, 2)
    if len(found.accounts) > LISTED_RANKS:
        yield f"{len(columns[0].cells)} of {len(found.accounts)} ranks; --json has all"


def _ms(seconds: float, step: float) -> str:
    """Return milliseconds to a tenth, or to a few thousandths of a step if that is finer."""
    digits = max(1, 3 - math.floor(math.log10(step * 1e3))) if step > 0 else 1
    return f"{seconds * 1e3:.{digits}f}" if seconds > 0 else "–"


def facts(found: Diagnosis) -> list[tuple[str, str]]:
    """Return the accuracy of the report, and its sources."""
    slow = found.slowdown
    share = ""
    if slow.last_stage is not None and slow.slowest_workers is not None:
        share = (
            f"; an ideal last stage saves {_share(slow.last_stage)} of that, ideal slowest 3 % of "
            f"workers {_share(slow.slowest_workers)}"
        )
    rows = [("slowdown", f"{slow.total:.3f} of a run with equal stages, copies and links{share}")]
    mode, error = found.mode
    fits = f"p2p mode {mode} fits best"
    if error > NO_MODE:
        fits = f"no p2p mode explains when actions began, {mode} is nearest"
    rows.append((
        "replay",
        f"{100 * found.replay_error:.2f} % off, a model of median times "
        f"{100 * found.model_error:.1f} % off; {fits}"
    ))  # fmt: skip
    rows.append(("clocks", _clocks(found)))
    rows += [("", text) for text in _few(found.clocks.warnings)]
    taken = ", ".join(f"{key}: {value}" for key, value in found.observed.taken_for.items())
    rows.append(("read as", f"{found.observed.format}; {taken}"))
    if found.observed.order_assumed:
        rows.append(("order", f"assumed to be {found.observed.order_assumed}: the trace has none"))
    if found.run.missing:
        names = sorted({rank for _, rank in found.run.missing})
        rows.append(
            ("not traced", f"rank {ranges(names)}, or not whole: times are those of its like")
        )
    left = [f"{count:,} × {reason}" for reason, count in found.left_out.items()]
    if left:
        rows.append(("left out", "; ".join(left)))
    return rows


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.005 else "nothing"


def _few(texts: Sequence[str]) -> list[str]:
    more = len(texts) - LISTED_LINES
    return [*texts[:LISTED_LINES], *([f"and {more} more of that kind"] if more > 0 else [])]


def _clocks(found: Diagnosis) -> str:
    clocks = found.clocks
    if not clocks.intervals:
        return "no messages to compare them by"
    moved = np.abs(clocks.offsets).max() * 1e3
    width = clocks.half_width * 1e3
    text = "one clock" if not moved else f"corrected by up to {number(float(moved), 3)} ms"
    if width < 0:
        text += "; messages contradict each other"
    elif np.isfinite(width):
        text += f"; messages bound them to ± {number(width, 2)} ms (median)"
    rates = [abs(one.rate) for one in clocks.drifts if one.low > 0 or one.high < 0]
    return text + (f"; they drift by up to {max(rates) * 1e6:.0f} µs a second" if rates else "")


def what_if_text(one: WhatIf, width: int) -> list[str]:
    """Return the time of a mean step in a what-if, in a line or two."""
    word = "shorter" if one.gain >= 0 else "longer"
    text = (
        f"{one.text}: a mean step takes {_milliseconds(one.after)} ms, not "
        f"{_milliseconds(one.before)}: {100 * abs(one.gain):.1f} % {word}"
    )
    if one.timeline is not None:
        peak = float(one.timeline.peak_activation.max())
        text += f"; {number(peak, 3)} activation units on the fullest rank"
    return wrap(text + _caution(one), width)


def _milliseconds(seconds: float) -> str:
    return number(seconds * 1e3, 4)


def _caution(one: WhatIf) -> str:
    """Return the error in words if a model does not explain the run well."""
    if one.after == one.before:
        return ""
    if one.error <= APART:
        return ""
    return (
        f". Uncertain, ± {_milliseconds(one.error * one.before)} ms: with one time for every link, "
        f"the run is {100 * one.error:.1f} % off"
    )
