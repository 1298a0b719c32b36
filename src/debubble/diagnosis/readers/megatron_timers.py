"""Megatron-LM's timer log (``--timing-log-level 2``): sums per rank and iteration, costs only.

The log has the total time of all forwards and of all backwards of an iteration on every rank
(``--timing-log-option all``), or the minimum and maximum over ranks (``minmax``, ``max``); old
releases write those of the last rank in one line. Divided by microbatches and chunks, that is the
cost of an action. The log has no times of single actions. The numbers of microbatches and chunks
are in the list of arguments at its beginning.

Launchers and loggers write a prefix before every line, and mix the lines of ranks: lines with the
same prefix are read as one log. What is before the title of sums (``times across ranks (ms)``) and
before a following line is a prefix; its numbers may differ between lines.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debubble.core.costs import Costs
from debubble.core.errors import FormatError
from debubble.diagnosis.observed import Location, Observed, ObservedActions, Times, Whole
from debubble.diagnosis.readers.stream import LeftOut, lines

NAME = "megatron-timers"
MARKS = (b"times across ranks (ms)", b"time across ranks (ms)", b"| forward-compute: ")
TIMERS = {"forward-compute": "F", "backward-compute": "B"}
MAX_ITERATIONS = 100_000
MAX_RANKS = 1 << 16
FOLLOWING = 16
"""Lines after the title of sums that show whether lines have its prefix."""

MAX_PREFIX = 300
"""Maximum length of a prefix."""

MAX_PREFIXES = 64
"""Maximum number of forms of prefixes in a log."""

NAMED = 3
"""Maximum number of other timers in a message."""

_TITLE = "across ranks (ms)"
_HEADS = ("times across ranks (ms)", "time across ranks (ms)")
_ARGUMENT = re.compile(r"(?<![a-z_])([a-z_]{3,60}) \.+ (\d{1,9})\s*$", re.ASCII)
_TIMER = re.compile(
    r"\s*([a-z-]{3,60})[ .]*:\s*(?:\(?(\d{1,12}\.\d+)(?:, (\d{1,12}\.\d+)\))?)?\s*", re.ASCII
)
_RANK = re.compile(r"rank\s+(\d{1,6}): (\d{1,12}\.\d+)", re.ASCII)
_RANKS = re.compile(r"(?:[ \t]*rank +\d{1,6}: \d{1,12}\.\d++[ \t\r]*(?:\n|\Z))++", re.ASCII)
_ONE_LINE = re.compile(r"time \(ms\) \|(.* forward-compute: .*)")
_IN_LINE = re.compile(r"([a-z-]{3,60}): (\d{1,12}\.\d+)", re.ASCII)
_HEAD = re.compile(r"(?:\(min, max\) |max )?times?$")
_COLORS = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]", re.ASCII)
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[T ]?|\d\d:\d\d:\d\d\S*|\d{9,}(?:\.\d+)?", re.ASCII)
ALL = -1
"""Rank of a time that belongs to the slowest rank, or to the one that logs."""

_ITERATION = re.compile(r"iteration\s+(\d{1,9})/")

OTHER_TIMERS = "sums of timers other than forward-compute and backward-compute"
TOO_MANY = f"iterations beyond the first {MAX_ITERATIONS:,}"


def recognizes(head: bytes) -> bool:
    """Return True if a log begins like Megatron's, with times or its list of arguments."""
    text = head.decode("utf-8", "replace")
    words = (*_HEADS, "| forward-compute: ", "pipeline_model_parallel_size ...")
    return any(each in text for each in words)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the logs of one run.

    Raise FormatError when they lack sums of forwards and backwards, or the number of microbatches.
    """
    log = _Log(left_out)
    for path in files:
        log.read(path)
    if not all(log.sums().values()):
        seen = f", but of {', '.join(sorted(log.others)[:NAMED])}" if log.others else ""
        raise FormatError(
            f"{where}: no sums of forward-compute and backward-compute{seen}; log with "
            "--timing-log-level 2 --timing-log-option all"
        )
    return observed_sums(
        NAME, where, log.arguments, log.sums(), left_out, iterations=len(log.iterations),
        files=files,
    )  # fmt: skip


def observed_sums(
    name: str, where: str, arguments: Mapping[str, int], sums: Mapping[str, Mapping[int, Times]],
    left_out: LeftOut, *, iterations: int, files: Sequence[Path],
    source: str = "the log; keep its beginning, where Megatron lists arguments",
) -> Observed:  # fmt: skip
    """Return the costs of actions by sums of times of iterations, in milliseconds.

    `arguments` are Megatron's, from `source`; `sums` are by kind and rank. Raise FormatError when
    arguments that say the number of microbatches are missing.
    """
    ranks = _size(where, arguments, "pipeline_model_parallel_size", source)
    chunks = arguments.get("virtual_pipeline_model_parallel_size", 1) or 1
    batch = _size(where, arguments, "micro_batch_size", source)
    batch *= arguments.get("data_parallel_size", 1)
    microbatches = _size(where, arguments, "global_batch_size", source) // max(batch, 1)
    if not microbatches or ranks > MAX_RANKS or chunks > MAX_RANKS:
        raise FormatError(
            f"{where}: {ranks} ranks, {chunks} chunks and {microbatches} microbatches by the "
            "list of arguments; give the log of one run"
        )
    world = arguments.get("world_size", 1 + max(max(each) for each in sums.values()))
    peers = max(world // ranks, 1)
    every = all(ALL not in each for each in sums.values())
    costs: dict[str, Any] = {
        kind: _per_stage(each, ranks, chunks, peers, microbatches) for kind, each in sums.items()
    }
    reported = {min(rank // peers, ranks - 1) for rank in sums["F"]} if every else set(range(ranks))
    file = files[0].name if len(files) == 1 else None
    return Observed(
        name, ranks, 1, (), ObservedActions.of(), device="gpu",
        locations=tuple(
            Location(rank if every and peers == 1 else None, file=file) for rank in range(ranks)
        ),
        missing=tuple((0, rank) for rank in range(ranks) if rank not in reported),
        taken_for={
            "rank": f"rank // {peers}, as Megatron places pipelines" if every
            else "not told: the slowest rank's sums stand for all",
            "stage": "rank, the same for all of its chunks",
            "microbatch": f"not told; sums are divided by {microbatches} microbatches",
            "step": f"medians of {max(iterations, 1)} iterations",
            "clock": "none: the log has sums and no points in time",
        },
        left_out=dict(left_out), costs=Costs(**costs, time_unit="ms"),
    )  # fmt: skip


class _Log:
    """Logs of one run: numbers in the list of arguments, and iterations with times."""

    def __init__(self, left_out: LeftOut) -> None:
        self._left_out = left_out
        self.arguments: dict[str, int] = {}
        self.iterations: set[int] = set()
        self.others: set[str] = set()
        self._found: dict[str, list[tuple[Whole, Times]]] = defaultdict(list)
        self._inside, self._timer = False, ""
        self._states: dict[str, tuple[bool, str]] = {}

    def read(self, path: Path) -> None:
        """Read a log."""
        self._states = {}
        prefixes = _Prefixes()
        for piece in lines(path, self._left_out):
            text = _COLORS.sub("", piece.decode("utf-8", "replace"))
            for prefix, each in prefixes.split(text).items():
                self._inside, self._timer = self._states.get(prefix, (False, ""))
                if not self._lines(each):
                    self._left_out[TOO_MANY] += 1
                    return
                self._states[prefix] = self._inside, self._timer

    @property
    def _kind(self) -> str:
        """Kind of action of the following times by rank; empty for none."""
        return TIMERS.get(self._timer, "") if self._inside else ""

    def _lines(self, text: str) -> bool:
        """Read lines one by one, and consecutive lines of ranks as one."""
        at = 0
        while at < len(text):
            ranks = _RANKS.match(text, at)
            end = ranks.end() if ranks else text.find("\n", at) + 1 or len(text)
            if ranks is None:
                if not self._line(text[at:end].rstrip("\r\n")):
                    return False
            elif self._kind:
                pairs = _RANK.findall(text, at, end)
                rank, time = zip(*pairs, strict=True)
                self._found[self._kind].append((np.array(rank, int), np.array(time, float)))
            at = end
        return True

    def _line(self, line: str) -> bool:
        """Read a line without a rank; return False if its iteration exceeds the limit."""
        parsed = _parsed(line)
        if parsed.argument is not None:
            self.arguments.setdefault(*parsed.argument)
            return True
        if parsed.iteration is not None:
            if len(self.iterations) >= MAX_ITERATIONS:
                return False
            self.iterations.add(parsed.iteration)
        for timer, time in parsed.one_line:
            if timer in TIMERS:
                self._found[TIMERS[timer]].append((np.array([ALL]), np.array([time])))
        if parsed.begins:
            self._inside, self._timer = True, ""
            return True
        self._inside = self._inside and parsed.timer is not None
        if not self._inside or parsed.timer is None:
            return True
        self._timer = parsed.timer
        if self._timer not in TIMERS:
            self._left_out[OTHER_TIMERS] += 1
            self.others.add(self._timer)
        elif parsed.time is not None:
            self._found[TIMERS[self._timer]].append((np.array([ALL]), np.array([parsed.time])))
        return True

    def sums(self) -> dict[str, dict[int, Times]]:
        """Return sums of times by kind and rank, in milliseconds."""
        found: dict[str, dict[int, Times]] = {}
        for kind in TIMERS.values():
            parts = [(np.zeros(0, int), np.zeros(0)), *self._found[kind]]
            rank, times = (np.concatenate(each) for each in zip(*parts, strict=True))
            order = np.argsort(rank, kind="stable")
            ranks, first = np.unique(rank[order], return_index=True)
            split = np.split(times[order], first[1:])
            found[kind] = dict(zip(ranks.tolist(), split, strict=False))
        return found


class _Line(NamedTuple):
    """Content of a line without a rank."""

    argument: tuple[str, int] | None
    iteration: int | None
    begins: bool
    """True if sums of timers follow."""
    timer: str | None
    time: float | None
    one_line: tuple[tuple[str, float], ...]
    """Timers and times of a line with all of them."""


@functools.lru_cache(maxsize=1 << 10)
def _parsed(line: str) -> _Line:
    """Parse a line; most are names of timers, which repeat."""
    argument = _ARGUMENT.search(line) if ".. " in line else None
    timer = _TIMER.fullmatch(line)
    iteration, one_line = _ITERATION.search(line), _ONE_LINE.search(line)
    return _Line(
        None if argument is None else (argument[1], int(argument[2])),
        None if iteration is None else int(iteration[1]),
        any(words in line for words in _HEADS),
        None if timer is None else timer[1],
        float(timer[3] or timer[2]) if timer is not None and timer[2] else None,
        () if one_line is None
        else tuple((name, float(time)) for name, time in _IN_LINE.findall(one_line[1])),
    )  # fmt: skip


class _Prefixes:
    """Forms of prefixes of a log, found at the titles of sums."""

    def __init__(self) -> None:
        self._forms: dict[str, re.Pattern[str]] = {}

    def split(self, text: str) -> dict[str, str]:
        """Return the lines of every prefix, without it; times of day in a prefix do not count."""
        self._find(text)
        if not self._forms:
            return {"": text}
        found: dict[str, list[str]] = defaultdict(list)
        for line in text.splitlines(keepends=True):
            matches = (form.match(line) for form in self._forms.values())
            end = max((match.end() for match in matches if match), default=0)
            found[_CLOCK.sub("", line[:end]).strip()].append(line[end:])
        return {prefix: "".join(each) for prefix, each in found.items()}

    def _find(self, text: str) -> None:
        """Add the forms of prefixes before titles of sums."""
        at = text.find(_TITLE)
        while at >= 0 and len(self._forms) < MAX_PREFIXES:
            begin = text.rfind("\n", 0, at) + 1
            prefix = _HEAD.sub("", text[begin:at].rstrip()).strip()
            if 0 < len(prefix) <= MAX_PREFIX:
                form = re.sub(r"\d+", r"\\d+", re.escape(prefix)).replace("\\ ", " +")
                if form not in self._forms and self._goes_on(text, at, pattern := re.compile(
                    rf" *{form} ?", re.ASCII
                )):  # fmt: skip
                    self._forms[form] = pattern
            at = text.find(_TITLE, at + 1)

    @staticmethod
    def _goes_on(text: str, at: int, form: re.Pattern[str]) -> bool:
        """Return True if a timer follows a title with the same prefix.

        Loggers may write one prefix before the title and all its lines.
        """
        for _ in range(FOLLOWING):
            begin = text.find("\n", at) + 1
            if not begin:
                return False
            at = begin
            match = form.match(text, begin)
            end = text.find("\n", begin)
            end = len(text) if end < 0 else end
            if match is not None and _TIMER.fullmatch(text, match.end(), end) is not None:
                return True
        return False


def _per_stage(
    sums: Mapping[int, Times], ranks: int, chunks: int, peers: int, microbatches: int
) -> float | list[float]:
    """Return the cost of an action by stage: the median over iterations of the slowest peer."""
    share = microbatches * chunks
    if ALL in sums:
        return float(np.median(sums[ALL])) / share
    found: dict[int, float] = {}
    for rank, values in sums.items():
        at = min(rank // peers, ranks - 1)
        found[at] = max(found.get(at, 0.0), float(np.median(values)) / share)
    # A rank that is missing in the log counts as the mean of the others.
    mean = sum(found.values()) / len(found)
    return [found.get(rank, mean) for rank in range(ranks)] * chunks


def _size(where: str, arguments: Mapping[str, int], key: str, source: str) -> int:
    if not arguments.get(key):
        raise FormatError(
            f"{where}: sums of forward-compute and backward-compute, but no '{key}' in {source}; "
            "for causes, record all ranks with torch.profiler"
        )
    return arguments[key]
