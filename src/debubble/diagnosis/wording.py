"""Words of findings: a subject for the headline, a description, advice and a change to try.

All of them fit the run: its device, the backend of its messages, and where its ranks are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from debubble.core.units import counted
from debubble.diagnosis.candidates import Cause
from debubble.diagnosis.machines import Machines
from debubble.diagnosis.run import Run

LEAST_ERROR = 5e-4
"""Minimum error that is shown, as a share of a step."""

DOUBTFUL = 0.1
"""Minimum error of a gain that is given as a range, as a share of a step."""


@dataclass(frozen=True)
class CauseInRun:
    """A cause in a run."""

    one: Cause
    run: Run
    machines: Machines

    @property
    def on_cpu(self) -> bool:
        """True if the run computed on CPUs."""
        return self.run.device == "cpu"

    @property
    def machine(self) -> str:
        """Location of the cause's only worker in words, or an empty text."""
        return self.machines.named(self.one.where)

    @property
    def several(self) -> bool:
        """True if the run has several copies."""
        return int(self.run.copy.max()) > 0

    @property
    def copy(self) -> str:
        """Copy of the cause with a preposition; empty if it is in no single one of several."""
        copy = self.one.where.get("copy")
        return f" of copy {copy}" if self.several and copy is not None else ""

    @property
    def rank(self) -> str:
        """Rank of the cause."""
        where = self.one.where
        if where.get("rank") is None:
            return "several ranks"
        return f"rank {where['rank']}{self.copy}"

    @property
    def link(self) -> str:
        """Link of the cause."""
        link = self.one.where["link"]
        assert isinstance(link, list)
        return f"ranks {link[0]} and {link[1]}{self.copy}"


def subject(case: CauseInRun) -> str:
    """Return what is wrong, in a few words."""
    if case.one.mode is not None:
        return "Transfers hold up ranks"
    return _SUBJECTS[case.one.cause](case)


def description(case: CauseInRun) -> str:
    """Return what is wrong, with sizes."""
    mode = case.one.mode
    if mode is not None:
        return (
            f"actions begin as if the p2p mode were {mode.name} ({mode.title}), and would begin "
            "sooner with transfers that hold up no rank"
        )
    return _DESCRIPTIONS[case.one.cause](case)


def advice(case: CauseInRun) -> str:
    """Return advice that fits the run."""
    if case.one.mode is not None:
        hint = "" if case.on_cpu else " (Megatron: --overlap-p2p-communication)"
        return f"Overlap transfers with computing{hint}"
    found = _ADVICE[case.one.cause]
    return found(case) if callable(found) else found


def change(case: CauseInRun) -> str:
    """Return the change of ``--set`` that removes the cause; empty if there is none."""
    one, where = case.one, case.one.where
    alone = {"transfer": "p2p*=0.5", "launch-gap": "gaps=0"}
    if one.cause in alone:
        return alone[one.cause]
    link, copy = where.get("link"), where.get("copy")
    owners = {
        "slow-stage": f"stage{where.get('stage')}", "slow-worker": f"rank{where.get('rank')}",
        "slow-copy": f"copy{copy}",
        "slow-link": f"p2p.{link[0]}-{link[1]}" if isinstance(link, list) else "",
    }  # fmt: skip
    if one.cause not in owners or not (math.isfinite(one.size) and one.size > 1):
        return ""
    within = f"copy{copy}." if case.copy and one.cause != "slow-copy" else ""
    return f"{within}{owners[one.cause]}*={1 / one.size:.2g}"


def _times(size: float) -> str:
    return f"{size:.3g} times" if math.isfinite(size) else "longer"


def _kinds(one: Cause) -> str:
    kinds = ", ".join(f"{kind} × {size:.2f}" for kind, size in one.by_kind.items())
    return f" ({kinds})" if kinds else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


_SUBJECTS: Mapping[str, Callable[[CauseInRun], str]] = {
    "slow-stage": lambda case: f"Stage {case.one.where['stage']} on {case.rank} is slow",
    "slow-worker": lambda case: (
        f"{_capital(case.rank)}{case.machines.named(case.one.where, short=True)} is slow"
    ),
    "slow-copy": lambda case: f"Copy {case.one.where['copy']} is slow",
    "slow-link": lambda case: f"The link between {case.link} is slow",
    "head-of-line": lambda case: f"Messages between {case.link} queue behind others",
    "transfer": lambda _: "Ranks wait for transfers",
    "launch-gap": lambda case: f"The host of {case.rank} launches too late"
    if "rank" in case.one.where else "Hosts launch too late",
    "garbage-collection": lambda case: f"Python collects garbage on {case.rank}",
    "memory": lambda case: f"{_capital(case.rank)} allocates memory within steps",
    "sequence-length": lambda _: "Microbatches differ in length",
    "jitter": lambda case: f"Times of {case.rank} are unsteady",
    "order": lambda _: "Actions run in another order than the nearest schedule",
}  # fmt: skip


def _garbage(case: CauseInRun) -> str:
    if case.one.count:
        return (
            f"{counted(case.one.count, 'forward')} on {case.rank}{case.machine} took far longer "
            "than all others, and no backward did: Python may have collected garbage"
        )
    return (
        f"forwards on {case.rank}{case.machine} stand still now and then, backwards do not: Python "
        "collects garbage"
    )


def _worker(case: CauseInRun) -> str:
    stage = case.one.where.get("stage")
    return f"{case.rank}{f', stage {stage}' if stage is not None else ''}{case.machine}"


def _jitter(case: CauseInRun) -> str:
    size = case.one.size
    if not math.isfinite(size):
        return (
            f"some actions on {case.rank}{case.machine} take far longer than others of their kind"
        )
    return (
        f"the times of {case.rank}{case.machine} are unsteady: the same work takes longer at one "
        f"time than at another, by {100 * (size - 1):.0f} % (standard deviation)"
    )


_DESCRIPTIONS: Mapping[str, Callable[[CauseInRun], str]] = {
    "slow-stage": lambda case: (
        f"stage {case.one.where['stage']} on {case.rank}{case.machine} takes "
        f"{_times(case.one.size)} as long as the others{_kinds(case.one)}"
    ),
    "slow-worker": lambda case: (
        f"{_worker(case)} takes {_times(case.one.size)} as long as others with the same work"
    ),
    "slow-copy": lambda case: (
        f"all ranks of copy {case.one.where['copy']} take {_times(case.one.size)} as long as "
        "those of other copies"
    ),
    "slow-link": lambda case: (
        f"messages between {case.link}{case.machines.ends(case.one.where)} take "
        f"{_times(case.one.size)} as long as others"
    ),
    "head-of-line": lambda case: (
        f"messages between {case.link}{case.machines.ends(case.one.where)} are queued behind "
        "others whose data is not there yet"
    ),
    "transfer": lambda _: "ranks wait for transfers, and the links are at their usual speed",
    "launch-gap": lambda case: (
        f"{case.rank}{case.machine} had input and nothing to do, and began late: the host "
        "launches too late"
    ),
    "garbage-collection": _garbage,
    "memory": lambda case: f"{case.rank}{case.machine} stands still to allocate memory",
    "sequence-length": lambda case: (
        "microbatches differ in length: their forwards and backwards are long together, the "
        f"longest {_times(case.one.size)} the mean"
    ),
    "jitter": _jitter,
    "order": lambda _: "actions run in another order than the schedule that is nearest",
}  # fmt: skip


def _slow_stage(case: CauseInRun) -> str:
    share = 100 * (1 - 1 / case.one.size)
    text = f"Give the stage about {share:.0f} % less work: another split of the layers"
    if case.several:
        return text
    other = {"cpu": "host", "gpu": "device"}.get(case.run.device, "device or host")
    return f"{text}. If it has no more work than others, look at its {other}"


def _slow_worker(case: CauseInRun) -> str:
    if case.on_cpu:
        return "Look at its host (other load, number of threads, clock), or replace it"
    return "Look at its device and host (clock, temperature, other load), or replace it"


def _slow_link(case: CauseInRun) -> str:
    if case.machines.apart(case.one.where):
        return "Look at the route between their hosts, or place neighboring ranks nearer"
    if case.on_cpu:
        return "Both are on one host: look at its load"
    load = "" if case.run.device else "its load, and between GPUs at "
    return f"Both are on one host: look at {load}the link of their devices (nvidia-smi topo -m)"


def _transfer(case: CauseInRun) -> str:
    if case.on_cpu:
        through = f" through {case.run.backend}" if case.run.backend else ""
        return (
            f"CPUs move these messages{through}: leave them free processors, or send smaller "
            "messages"
        )
    return "Use a faster link or smaller messages, or a p2p mode that overlaps transfers"


def _launch_gap(case: CauseInRun) -> str:
    if case.on_cpu:
        return "Free the host of other work: fewer threads or processes than its processors"
    return "Use CUDA graphs or fewer, larger kernels, or free the host of other work"


def _memory(case: CauseInRun) -> str:
    if case.on_cpu:
        return "Allocate once and reuse it"
    return "Use expandable segments, or leave the allocator more room"


def _jitter_advice(case: CauseInRun) -> str:
    if case.on_cpu:
        return "Look for other load on the host: more threads or processes than its processors"
    return "Look for other load on the host, for clocks and power limits that change"


_ADVICE: Mapping[str, str | Callable[[CauseInRun], str]] = {
    "slow-stage": _slow_stage,
    "slow-worker": _slow_worker,
    "slow-copy": "Look at what its hosts and switches have in common, or replace them",
    "slow-link": _slow_link,
    "head-of-line": (
        "Post receives when their data is due, not before sends: debubble check names the message, "
        "debubble export --to torch-csv-comms writes an order of transfers to run"
    ),
    "transfer": _transfer,
    "launch-gap": _launch_gap,
    "garbage-collection": "Collect at the same step on all ranks: gc.disable() and gc.collect()",
    "memory": _memory,
    "sequence-length": "Balance the tokens of microbatches, within a batch and over copies",
    "jitter": _jitter_advice,
    "order": "Run that schedule: debubble trace --schedule-out schedule.csv writes it",
}


def share_text(share: float, error: float) -> str:
    """Return a share in percent with its error, in the digits that the error leaves.

    Examples
    --------
    >>> share_text(0.1234, 0.0), share_text(0.1234, 0.007), share_text(0.1234, 0.03)
    ('12.3 %', '12.3 % ± 0.7', '12 % ± 3')
    >>> share_text(0.05, 0.07), share_text(0.2, 0.13)
    ('up to 12 %', '7 to 33 %')
    """
    if error < LEAST_ERROR:
        return f"{100 * share:.1f} %"
    if error > DOUBTFUL:
        low, high = (100 * min(max(abs(share) + by, 0.0), 1.0) for by in (-error, error))
        return f"{low:.0f} to {high:.0f} %"
    if error >= abs(share):
        return f"up to {100 * (abs(share) + error):.0f} %"
    digits = 1 if error < 0.0095 else 0
    return f"{100 * share:.{digits}f} % ± {100 * error:.{digits}f}"
