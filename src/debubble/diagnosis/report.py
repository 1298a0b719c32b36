"""Text report of a diagnosis for a terminal: one screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from debubble.analysis.layout import GAP, Column, definitions, text_table, wrap
from debubble.analysis.metrics import ranges
from debubble.core.units import counted, number, rough_percent
from debubble.diagnosis.account import CAUSES
from debubble.diagnosis.diagnose import Diagnosis
from debubble.diagnosis.findings import LEAST_GAIN, TRUSTED, Finding, nothing
from debubble.diagnosis.next_command import RUN, next_command
from debubble.diagnosis.what_if import WhatIf
from debubble.diagnosis.wording import LEAST_ERROR, share_text
from debubble.interchange.text import plain

NO_MODE = 0.3
"""Maximum mean distance of starts, as a share of a typical action, for a p2p mode that fits."""

APART = 0.05
"""Maximum error of a prediction without a word about it, as a share of a step."""

LISTED_RANKS = 12
"""Maximum number of ranks with a line each."""

LISTED_FINDINGS, MOST_FINDINGS = 3, 20
"""Maximum number of findings, and that with details."""

LISTED_LINES = 3

EVERYWHERE = 0.99
"""Minimum share of steps and copies of a cause that is in all of them."""

LONGER = 0.02
"""Minimum share by which a predicted step is longer than the observed one, with a warning."""

LEAST_SHARE = 5e-4
"""Minimum share of a step of a cause with a column."""

NOT_QUITE = "not quite"
ACCOUNT_TITLE = "Where the time of a mean step went, in ms"

Style = Callable[[str, str], str]


def report(
    found: Diagnosis, width: int, style: Style | None = None, *, path: str = RUN,
    details: bool = False,
) -> str:  # fmt: skip
    """Return a report of a run in lines of a given width: the answer, findings, what to do next.

    `path` is that of the trace, for the next command. With `details` there are also the account of
    every rank, and the sources and accuracy of everything.
    """
    paint: Style = style or (lambda text, _: text)
    parts = [
        [paint(line, "head") for line in wrap(headline(found).replace(" ms", "\u00a0ms"), width)],
        [line for text in sentences(found) for line in wrap(text, width, 2)],
        [*_findings(found, width, MOST_FINDINGS if details else LISTED_FINDINGS)],
        [line for text in notes(found) for line in wrap(text, width, 2)],
    ]
    if details:
        rows = [(name, "", text) for name, text in facts(found)]
        parts += [[*_account(found, width)], definitions(rows, width)]
    lines = [line for part in parts if part for line in (*part, "")]
    lines.append(f"next: {next_command(found, path)}")
    if not details:
        more = "--details shows the time of every rank by cause, and the sources"
        lines += [paint(line, "faint") for line in wrap(more, width)]
    return "\n".join(lines)


def headline(found: Diagnosis) -> str:
    """Return the answer in a sentence: the largest loss, and the time of a step without it."""
    if not found.findings and found.replay_error > TRUSTED:
        return untrusted(found).rstrip(".")
    if not found.findings:
        text = _capital(nothing(found.beyond, len(found.run.step_times)))
        for one in found.faster[:1]:
            text += f"; with {one.text}, a step takes {share_text(one.gain, one.error)} less"
        return text
    first = found.findings[0]
    if first.gain is None:
        return f"{first.subject}; what that costs is uncertain"
    before, after = _milliseconds(first.before), _milliseconds(first.before - first.seconds)
    return (
        f"{first.subject}: without that, a {_step(found)} takes {after} ms, not {before} "
        f"({share_text(first.gain, first.error)} less)"
    )


def sentences(found: Diagnosis) -> Iterator[str]:
    """Return sentences on ranks without a trace, the schedule, and the time of a step."""
    schedule, run = found.schedule, found.run
    if run.missing:
        yield not_traced(found)
    copies = found.observed.copies
    sizes = [counted(schedule.ranks, "rank")]
    sizes += [f"{copies} copies"] if copies > 1 else []
    sizes += [counted(schedule.stages, "stage"), counted(schedule.microbatches, "microbatch"),
              counted(len(run.step_times), "step")]  # fmt: skip
    yield f"{found.name.text}: {', '.join(sizes)}"
    if found.name.differences:
        yield f"{NOT_QUITE} {found.name.text}: {found.name.differences[0]}"
    elif found.name.text == "custom":
        yield "no registered schedule, and near none"
    if schedule.carries:
        pairs = ", ".join(f"{one}:{other}" for one, other in schedule.carries)
        yield (
            f"Skip connections {pairs}: input counts as a late message of a neighbor until all is "
            "there, so that a slow link may be a slow skip connection"
        )
    times = run.step_times * 1e3
    span = f"; {number(float(times.min()), 4)} to {number(float(times.max()), 4)}"
    span = span if len(times) > 1 else ""
    text = (
        f"A step takes {number(float(np.median(times)), 4)} ms (median{span}); ranks are idle "
        f"{rough_percent(found.bubble_ratio)} of it"
    )
    if not np.isnan(run.start).any():
        planned = rough_percent(found.planned_bubble_ratio)
        text += f", {planned} due to the schedule"
    if found.idle_inside > LEAST_GAIN:
        text += f"; inside actions, devices are idle another {rough_percent(found.idle_inside)}"
    yield text


def _findings(found: Diagnosis, width: int, most: int) -> Iterator[str]:
    """Yield a table of the findings: gain, time of a step with and without it, and the cause."""
    shown = found.findings[:most]
    if not shown:
        return
    known = shown[0].gain is not None
    cells = [[gain_cell(one), step_cell(one)][not known :] for one in shown]
    heads = ["gain", "step, ms"] if known else ["lost, ms"]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]

    def line(cells: Sequence[str], text: str) -> str:
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        return GAP.join([*padded, text])

    yield line(heads, "cause")
    blank = [""] * len(widths)
    for row, one in zip(cells, shown, strict=True):
        first, *rest = wrap(f"{one.cause}: {finding_text(one)}", width - len(line(blank, "")))
        yield line(row, first)
        yield from (line(blank, text) for text in rest)
    if more := len(found.findings) - len(shown):
        yield f"and {more} more, see --details"


def finding_text(one: Finding) -> str:
    """Return description, frequency and advice of a finding."""
    rare = one.persistence <= EVERYWHERE
    some = f", in {100 * one.persistence:.0f} % of steps and copies" if rare else ""
    return f"{one.text}{some}. {one.advice}."


def gain_cell(one: Finding) -> str:
    """Return the gain of a finding; empty if it is unknown."""
    return "" if one.gain is None else share_text(one.gain, one.error)


def step_cell(one: Finding) -> str:
    """Return the time of a step with and without a finding, or the time lost, in ms."""
    if one.gain is None:
        return f"about {number(one.seconds * 1e3, 2)}"
    return f"{_milliseconds(one.before)} → {_milliseconds(one.before - one.seconds)}"


def notes(found: Diagnosis) -> Iterator[str]:
    """Yield sentences on limits of the findings, on faster schedules, and on assumptions."""
    if found.findings and found.replay_error > TRUSTED:
        yield untrusted(found)
    names = ", ".join(
        f"{one.text} {_milliseconds(one.after)} ms ({share_text(one.gain, one.error)} less)"
        for one in found.faster[:LISTED_LINES]
    )
    if names:
        yield f"Other schedules at these times: {names}."
    if found.replay.uncertainty > APART and found.replay_error <= TRUSTED:
        yield f"Gains are uncertain: {_off(found.replay.uncertainty)}."
    if found.observed.order_assumed:
        yield f"The trace has no order of actions: {found.observed.order_assumed} is assumed."
    if text := longer_than_observed(found):
        yield text


def not_traced(found: Diagnosis) -> str:
    """Return a sentence on the ranks without a trace."""
    missing, copies = found.run.missing, found.observed.copies
    parts = []
    for copy in sorted({copy for copy, _ in missing}):
        ranks = [rank for of, rank in missing if of == copy]
        word = "rank" if len(ranks) == 1 else "ranks"
        of_copy = f" of copy {copy}" if copies > 1 else ""
        few = len(ranks) <= LISTED_LINES
        names = list(map(str, ranks)) if few else ranges(ranks).split(", ")
        parts.append(f"{word} {_listed(names)}{of_copy}")
    was, its = ("was", "its") if len(missing) == 1 else ("were", "their")
    others = "other copies, or other stages" if copies > 1 else "other stages"
    return (
        f"{_capital(_listed(parts))} {was} not traced, or not as a whole: {its} times are "
        f"those of {others}."
    )


def _listed(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def longer_than_observed(found: Diagnosis) -> str:
    """Return a warning if the predicted step is longer than the observed one, or an empty text."""
    plan, step = found.plan, float(found.run.step_times.mean())
    if np.isnan(found.run.start).any() or plan <= step * (1 + LONGER):
        return ""
    return (
        f"The predicted step is {100 * (plan / step - 1):.0f} % longer than the observed one "
        f"({_milliseconds(plan)} ms at median times): less idle time is due to the schedule."
    )


def _step(found: Diagnosis) -> str:
    """Return what gains are of: a step, or a mean one where that is not the median one."""
    times = found.run.step_times
    mean, median = float(times.mean()), float(np.median(times))
    return "step" if _milliseconds(mean) == _milliseconds(median) else "mean step"


def untrusted(found: Diagnosis) -> str:
    """Return the reason for a report without gains."""
    return (
        f"No gains are given: replayed steps are {100 * found.replay_error:.1f} % off, and the "
        f"limit is {100 * TRUSTED:.0f} %."
    )


def gain_text(one: Finding) -> str:
    """Return the gain in words."""
    if one.gain is None:
        return f"{step_cell(one)} ms of a step"
    return f"{gain_cell(one)} to gain, {step_cell(one)} ms a step"


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


def _account(found: Diagnosis, width: int) -> Iterator[str]:
    columns = account_columns(found, LISTED_RANKS)
    blocks, left_out = text_table(columns, width)
    yield ACCOUNT_TITLE
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
        shares = (slow.last_stage, slow.slowest_workers)
        last, slowest = (f"{100 * max(each, 0.0):.0f} %" for each in shares)
        share = f" (share of the last stage {last}, of the slowest 3 % of workers {slowest})"
    rows = [("slowdown", f"{slow.total:.3g} times the same run without stragglers{share}")]
    mode, error = found.mode
    fits = f"the best p2p mode is {mode}"
    if error > NO_MODE:
        fits = f"no p2p mode reproduces the start times (nearest: {mode})"
    rows.append((
        "replay",
        f"{100 * found.replay_error:.2f} % off, or {100 * found.model_error:.1f} % with median "
        f"times; {fits}"
    ))  # fmt: skip
    rows.append(("clocks", _clocks(found)))
    rows += [("", text) for text in _few(found.clocks.warnings)]
    taken = ", ".join(f"{key}: {value}" for key, value in found.observed.taken_for.items())
    rows.append(("read as", f"{found.observed.format}; {taken}"))
    hosts = list(dict.fromkeys(name for name in found.observed.hosts if name))
    if hosts:
        shown = ", ".join(map(plain, hosts[:LISTED_RANKS]))
        more = f" and {len(hosts) - LISTED_RANKS} more" if len(hosts) > LISTED_RANKS else ""
        rows.append(("ran on", f"{counted(len(hosts), 'host')}: {shown}{more}"))
    left = [f"{count:,} × {reason}" for reason, count in found.left_out.items()]
    if left:
        rows.append(("skipped", "; ".join(left)))
    return rows


def _few(texts: Sequence[str]) -> list[str]:
    more = len(texts) - LISTED_LINES
    return [*texts[:LISTED_LINES], *([f"and {more} more of that kind"] if more > 0 else [])]


def _clocks(found: Diagnosis) -> str:
    clocks = found.clocks
    if not clocks.intervals:
        return "no messages to compare them"
    moved = np.abs(clocks.offsets).max() * 1e3
    width = clocks.half_width * 1e3
    text = "one clock" if not moved else f"corrected by up to {number(float(moved), 3)} ms"
    if width < 0:
        text += "; messages contradict each other"
    elif np.isfinite(width):
        text += f"; messages bound their differences to ± {number(width, 2)} ms (median)"
    rates = [abs(one.rate) for one in clocks.drifts if one.low > 0 or one.high < 0]
    return text + (f"; they drift by up to {max(rates) * 1e6:.0f} µs a second" if rates else "")


def what_if_text(one: WhatIf, width: int) -> list[str]:
    """Return the time of a mean step in a what-if, in a line or two."""
    word = "shorter" if one.gain >= 0 else "longer"
    share = share_text(abs(one.gain), one.error if abs(one.gain) > LEAST_ERROR else 0.0)
    text = (
        f"{one.text}: a mean step takes {_milliseconds(one.after)} ms, not "
        f"{_milliseconds(one.before)}: {share} {word}"
    )
    if one.timeline is not None:
        peak = float(one.timeline.peak_activation.max())
        text += f"; {number(peak, 3)} activation units on the fullest rank"
    if one.after != one.before and one.error > APART:
        text += f". Uncertain: {_off(one.error)}"
    return wrap(text, width)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _milliseconds(seconds: float) -> str:
    return number(seconds * 1e3, 4)


def _off(error: float) -> str:
    return f"with one time for every link, a step is {100 * error:.0f} % off"
