"""Values of the fields of :class:`debubble.core.kinds.KindSpec`, the rows of the table of kinds."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Protocol, TypeAlias


class Stream(IntEnum):
    """Streams of a rank: actions of one stream run one after the other."""

    COMPUTE = 0
    TRANSFER = 1
    COPY = 2
    COLLECTIVE = 3


STREAM_TITLES = {
    Stream.COMPUTE: "compute",
    Stream.TRANSFER: "transfers",
    Stream.COPY: "host copy",
    Stream.COLLECTIVE: "collectives",
}
"""Titles of the streams of a rank in pictures and traces."""


class Per(Enum):
    """The set of actions that a kind has, and so what the number of an action counts."""

    UNIT = "one for every stage and microbatch, or slice of it"
    SHARD = "one for every rank and microbatch, on the rank's first stage"
    STAGE = "any number for every stage; the microbatch has no meaning"
    STAGE_STEP = "one for every stage and iteration, which is its microbatch"
    RANK_STEP = "one for every rank and iteration, which is its microbatch"

    @property
    def of_rank(self) -> bool:
        """Return whether actions belong to a rank, which the stage that they carry stands for."""
        return self in (Per.SHARD, Per.RANK_STEP)


class Of(Enum):
    """The producers that a :class:`Need` refers to."""

    STAGE = "of the same microbatch, some stages and slices away"
    CARRIED_FROM = "of the same microbatch on the stage that carries something to this one"
    CARRIED_TO = "of the same microbatch on the stage that this one carries something to"
    LAST_STAGE = "of the same microbatch on the last stage"
    EVERY_SHARD = "of the same microbatch on every rank's shard"
    LATEST = "the last one of the same stage that stands before it in the program"
    ITERATION = "all of the same stage in the iteration that it ends"
    OWN_RANK = "the last one that stands before it in the program of its rank"
    EARLIER_RANKS = "the last one before the same step of every rank up to its own, through them"
    EVERY_RANK = "the last one before the same step of every rank, through them all and back"


class Time(Enum):
    """The cost that an action takes its time from."""

    STAGE = "a cost of its kind and stage"
    RANK = "a cost of its rank"
    LINK = "the link between two ranks"
    COPY = "bytes over the bandwidth of the host or of a link"
    NONE = "it takes no time"


class WaitRules(Protocol):
    """The fields of a schedule that decide what its actions wait for."""

    @property
    def vocabulary(self) -> int:
        """As of :class:`debubble.core.schedule.Schedule`, like the other fields."""

    @property
    def sync(self) -> str:
        """Rule of optimizer steps."""

    @property
    def recompute_after(self) -> str:
        """Rule of recomputes."""


Condition: TypeAlias = Callable[[WaitRules], bool]


def always(_schedule: WaitRules) -> bool:
    """Hold for every schedule."""
    return True


def late_recompute(schedule: WaitRules) -> bool:
    """Return whether recomputes wait for the gradient."""
    return schedule.recompute_after == "gradient"


def if_vocabulary(*forms: int) -> Condition:
    """Return the condition that the output layer is sharded in one of some forms."""
    return lambda schedule: schedule.vocabulary in forms


def if_sync(rule: str) -> Condition:
    """Return the condition that optimizer steps follow a rule."""
    return lambda schedule: schedule.sync == rule
