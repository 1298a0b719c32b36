"""Table of p2p modes: a row for every one.

In the words of a schedule whose sends and receives are actions:

* ``"overlapped"``: a transfer starts when its sender reaches the send, takes link time, and
  keeps no rank busy. The consumer waits for it; where the receive stands does not matter.
* ``"channel"``: the same, but the link from a to b carries one transfer at a time, in the order
  of the sends.
* ``"blocking"``: contiguous sends and receives between two compute actions are one group. A rank
  that reaches a group posts all of it. A transfer starts when both its ends are posted; the
  transfers of one group run at the same time, those of one link one by one. The rank goes on
  when all transfers of its group are over.
* ``"pair"``, ``"group"``, ``"directed"``: every send and receive is queued in the order of the
  program, as on a stream of NCCL: on one queue for each other rank, both directions together; on
  one for all of them; or on one for each other rank and direction. A transfer starts when both
  ranks have reached it and it heads the queues of both. Computing goes on meanwhile.

Where it matters how ranks order their receives, a schedule without transfers is given some first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import OptionSpec, Word

P2PMode: TypeAlias = Literal["overlapped", "channel", "blocking", "pair", "group", "directed"]

ReceivePolicy: TypeAlias = Literal["eager", "just-in-time", "queued"]
RECEIVE_POLICIES = ("eager", "just-in-time", "queued")
"""Policies that place receives, see :mod:`debubble.engine.transfers`."""


@dataclass(frozen=True)
class ModeSpec:
    """A row of the table of p2p modes."""

    name: P2PMode
    """Name of the mode."""
    title: str
    """Description, as outputs show it."""
    receives: ReceivePolicy | None = None
    """Policy that places receives in a schedule without transfers; None where it does not
    matter."""
    one_by_one: bool = False
    """Whether a link carries one transfer at a time, in the order of the sends."""
    blocks: bool = False
    """Whether a rank waits until its transfers are over."""
    queued: bool = False
    """Whether ranks queue the ends of their transfers."""
    by_peer: bool = False
    """Whether a rank has a queue for each other rank."""
    by_direction: bool = False
    """Whether it has one for each direction."""
    queue: str = ""
    """Its queues, in a few words; empty where there are none."""
    meeting: str = ""
    """Words for waits between ranks in deadlock messages; empty where there are none."""

    @property
    def holds_up(self) -> bool:
        """Return whether a rank may wait for others although transfers take no time."""
        return self.blocks or (self.queued and not self.by_peer)


MODES: tuple[ModeSpec, ...] = (
    ModeSpec(
        "overlapped", "transfers overlap with computing; only the receiver waits for its data",
    ),
    ModeSpec(
        "channel", "each directed pair of ranks carries one transfer at a time", one_by_one=True,
    ),
    ModeSpec(
        "blocking", "sender and receiver are both busy during a transfer",
        receives="just-in-time", blocks=True, meeting="with blocking transfers",
    ),
    ModeSpec(
        "pair",
        "transfers between two ranks share one queue, in program order (NCCL with a communicator "
        "of two ranks, as in PyTorch 2.13)",
        receives="queued", queued=True, by_peer=True, queue="one queue for each two ranks",
        meeting="with transfers queued between each two ranks, as by NCCL",
    ),
    ModeSpec(
        "group",
        "all transfers of a rank share one queue, in program order (NCCL with one communicator "
        "of all ranks, as in PyTorch before 2.13)",
        receives="queued", queued=True, queue="one queue per rank",
        meeting="with all transfers of a rank on one queue, as by NCCL with one communicator",
    ),
    ModeSpec(
        "directed",
        "transfers from one rank to another share one queue, in program order; each direction has "
        "its own",
        receives="queued", queued=True, by_peer=True, by_direction=True,
        queue="one queue for each two ranks and direction",
        meeting="with transfers queued between each two ranks in each direction",
    ),
)  # fmt: skip

MODE: dict[str, ModeSpec] = {spec.name: spec for spec in MODES}
P2P_MODES: tuple[P2PMode, ...] = tuple(spec.name for spec in MODES)

P2P_OPTION = OptionSpec(
    "p2p_mode", Word(P2P_MODES), "MODE",
    f"{P2P_MODES[0]} (default), {', '.join(P2P_MODES[1:-1])} or {P2P_MODES[-1]}.",
    "Transfers", default=P2P_MODES[0], neutral=P2P_MODES[0],
)  # fmt: skip
"""The mode as an option of a question."""

QUEUES = tuple(spec.name for spec in MODES if spec.queued)
"""Modes in which ranks queue their transfers."""

MEETING = tuple(spec.name for spec in MODES if spec.receives is not None)
"""Modes in which it matters where receives stand."""


def check_mode(mode: Any) -> P2PMode:
    """Return the p2p mode of this name; a ParameterError when there is none."""
    if not isinstance(mode, str) or mode not in MODE:
        raise ParameterError(f"p2p mode '{mode}'; {did_you_mean(str(mode), P2P_MODES)}")
    return MODE[mode].name
