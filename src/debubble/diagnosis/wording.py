"""Words of findings: a subject for the headline, a description, advice and a change to try.

All of them fit the run: its device, the backend of its messages, and where its ranks are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
    """A cause in a run, and the words for its parts."""

    one: Cause
    run: Run
    machines: Machines

    @property
    def on_cpu(self) -> bool:
        """True if the run computed on CPUs."""
        return self.run.device == "cpu"

    @property
    def machine(self) -> str:
        """Location of the cause's only worker, or an empty text."""
        return self.machines.named(self.one.where)

    @property
    def short(self) -> str:
        """Location as in `machine`, in fewer words."""
        return self.machines.named(self.one.where, short=True)

    @property
    def of_copy(self) -> str:
        """Copy of the cause; empty if it is in no single one of several."""
        copy = self.one.where.get("copy")
        return f" of copy {copy}" if self.run.copies > 1 and copy is not None else ""

    @property
    def rank(self) -> str:
        """Rank of the cause."""
        where = self.one.where
        return f"rank {where['rank']}{self.of_copy}" if "rank" in where else "several ranks"

    @property
    def at_stage(self) -> str:
        """Stage of the cause, if it is in one."""
        stage = self.one.where.get("stage")
        return "" if stage is None else f", stage {stage}"

    @property
    def link(self) -> str:
        """Link of the cause."""
        link = self.one.where["link"]
        assert isinstance(link, list)
        return f"ranks {link[0]} and {link[1]}{self.of_copy}"

    @property
    def ends(self) -> str:
        """Locations of both ends of the link."""
        return self.machines.ends(self.one.where)

    @property
    def hosts(self) -> str:
        """Host of the cause, or all hosts, with a verb."""
        return f"The host of {self.rank} launches" if "rank" in self.one.where else "Hosts launch"

    @property
    def times(self) -> str:
        """Ratio of the times with the cause to those without."""
        return f"{self.one.size:.3g} times" if math.isfinite(self.one.size) else "longer"

    @property
    def kinds(self) -> str:
        """Ratio as in `times` by kind of action."""
        kinds = ", ".join(f"{kind} × {size:.2f}" for kind, size in self.one.by_kind.items())
        return f" ({kinds})" if kinds else ""

    @property
    def spread(self) -> str:
        """Standard deviation of unsteady times."""
        return f"{100 * (self.one.size - 1):.0f} %"

    @property
    def excess(self) -> str:
        """Share of work that a slow stage has too much."""
        return f"{100 * (1 - 1 / self.one.size):.0f} %"

    @property
    def or_device(self) -> str:
        """Advice on a slow stage whose copies, if there were any, might not be slow."""
        if self.run.copies > 1:
            return ""
        other = {"cpu": "host", "gpu": "device"}.get(self.run.device, "device or host")
        return f". If it has no more work than others, look at its {other}"

    @property
    def look(self) -> str:
        """Advice on a slow link."""
        if self.machines.apart(self.one.where):
            return "Look at the route between their hosts, or place neighboring ranks nearer"
        if self.on_cpu:
            return "Both are on one host: look at its load"
        load = "" if self.run.device else "its load, and between GPUs at "
        return f"Both are on one host: look at {load}the link of their devices (nvidia-smi topo -m)"

    @property
    def or_idle(self) -> str:
        """Another place of late launches, if the trace has it."""
        return "" if np.isnan(self.run.busy).all() else ", or its device idled inside actions"

    @property
    def through(self) -> str:
        """Communication backend, if it is known."""
        return f" through {self.run.backend}" if self.run.backend else ""


class Words(NamedTuple):
    """Words of a cause; ``{0.rank}`` stands for the property of the :class:`CauseInRun`."""

    subject: str
    description: str
    advice: str
    advice_on_cpu: str = ""
    """Advice on runs on CPUs, if it is another."""


WORDS: Mapping[str, Words] = {
    "slow-stage": Words(
        "stage {0.one.where[stage]} on {0.rank} is slow",
        "stage {0.one.where[stage]} on {0.rank}{0.machine} takes {0.times} as long as the others"
        "{0.kinds}",
        "Give the stage about {0.excess} less work: another split of the layers{0.or_device}",
    ),
    "slow-worker": Words(
        "{0.rank}{0.short} is slow",
        "{0.rank}{0.at_stage}{0.machine} takes {0.times} as long as others with the same work",
        "Look at its device and host (clock, temperature, other load), or replace it",
        "Look at its host (other load, number of threads, clock), or replace it",
    ),
    "slow-copy": Words(
        "copy {0.one.where[copy]} is slow",
        "all ranks of copy {0.one.where[copy]} take {0.times} as long as those of other copies",
        "Look at what its hosts and switches have in common, or replace them",
    ),
    "slow-link": Words(
        "the link between {0.link} is slow",
        "messages between {0.link}{0.ends} take {0.times} as long as others",
        "{0.look}",
    ),
    "head-of-line": Words(
        "messages between {0.link} queue behind others",
        "messages between {0.link}{0.ends} are queued behind others whose data is not there yet",
        "Post receives when their data is due, not before sends: debubble check names the message, "
        "debubble export --to torch-csv-comms writes an order of transfers to run",
    ),
    "transfer": Words(
        "ranks wait for transfers",
        "ranks wait for transfers, and the links are at their usual speed",
        "Use a faster link or smaller messages, or a p2p mode that overlaps transfers",
        "CPUs move these messages{0.through}: leave them free processors, or send smaller messages",
    ),
    "transfer by mode": Words(
        "transfers hold up ranks",
        "actions begin as if the p2p mode were {0.one.mode.name} ({0.one.mode.title}), and would "
        "begin sooner with transfers that hold up no rank",
        "Overlap transfers with computing (Megatron: --overlap-p2p-communication)",
        "Overlap transfers with computing",
    ),
    "launch-gap": Words(
        "{0.hosts} too late",
        "{0.rank}{0.machine} had input and nothing to do, and began late{0.or_idle}: the host "
        "launches too late",
        "Use CUDA graphs or fewer, larger kernels, or free the host of other work",
        "Free the host of other work: fewer threads or processes than its processors",
    ),
    "garbage-collection": Words(
        "Python collects garbage on {0.rank}",
        "forwards on {0.rank}{0.machine} stand still now and then, backwards do not: Python "
        "collects garbage",
        "Collect at the same step on all ranks: gc.disable() and gc.collect()",
    ),
    "memory": Words(
        "{0.rank} allocates memory within steps",
        "{0.rank}{0.machine} stands still to allocate memory",
        "Use expandable segments, or leave the allocator more room",
        "Allocate once and reuse it",
    ),
    "sequence-length": Words(
        "microbatches differ in length",
        "microbatches differ in length: their forwards and backwards are long together, the "
        "longest {0.times} the mean",
        "Balance the tokens of microbatches, within a batch and over copies",
    ),
    "jitter": Words(
        "times of {0.rank} are unsteady",
        "the times of {0.rank}{0.machine} are unsteady: the same work takes longer at one time "
        "than at another, by {0.spread} (standard deviation)",
        "Look for other load on the host, for clocks and power limits that change",
        "Look for other load on the host: more threads or processes than its processors",
    ),
    "order": Words(
        "actions run in another order than the nearest schedule",
        "actions run in another order than the schedule that is nearest",
        "Run that schedule: debubble trace --schedule-out schedule.csv writes it",
    ),
}


def words_of(case: CauseInRun) -> Words:
    """Return the words of a cause, with its places and sizes, and advice that fits the run."""
    one = case.one
    words = WORDS["transfer by mode" if one.mode is not None else one.cause]
    if one.cause == "garbage-collection" and one.count:
        words = words._replace(
            description=f"{counted(one.count, 'forward')} on {{0.rank}}{{0.machine}} took far "
            "longer than all others, and no backward did: Python may have collected garbage"
        )
    if one.cause == "jitter" and not math.isfinite(one.size):
        words = words._replace(
            description="some actions on {0.rank}{0.machine} take far longer than others of their "
            "kind"
        )
    if case.on_cpu and words.advice_on_cpu:
        words = words._replace(advice=words.advice_on_cpu)
    subject, *others = (text.format(case) for text in words)
    return Words(subject[:1].upper() + subject[1:], *others)


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
    within = f"copy{copy}." if case.of_copy and one.cause != "slow-copy" else ""
    return f"{within}{owners[one.cause]}*={1 / one.size:.2g}"


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
