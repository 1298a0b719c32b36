"""What is wrong with an order, judged from its text alone: nothing of the package is used.

Meant for small orders. The words for what can be wrong are those of ``debubble check``; what they
mean is written down here a second time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.fuzz import queues

CELL = re.compile(r"(\d+)([A-Z_]+?)(\d+)?(?:\.(\d+))?")
WORK = ("F", "I", "W", "B")
ENDS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
SHARDS = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


class Key(NamedTuple):
    """An action; the unit counts slices of microbatches, or iterations of steps."""

    stage: int
    kind: str
    unit: int


@dataclass(frozen=True)
class Order:
    """An order as text.

    Parameters
    ----------
    rows
        The cells of every rank.
    table
        The rank of every stage, of every copy of the model.
    microbatches, slices, iterations
        Sizes; microbatches are those of one iteration.
    mode
        The p2p mode; None for all in which explicit transfers may be.
    memory
        Most activations of a rank, in units of one microbatch; None for any number.
    """

    rows: list[list[str]]
    table: list[list[int]]
    microbatches: int
    slices: int = 1
    iterations: int = 1
    mode: str | None = None
    memory: float | None = None
    cells: list[list[tuple[Key, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        found = [[self.keys(cell) for cell in row] for row in self.rows]
        object.__setattr__(self, "cells", found)

    def keys(self, cell: str) -> tuple[Key, ...]:
        """The actions of a cell: one, or those of an overlapped group."""
        found = []
        for part in cell.removesuffix("OVERLAP_F_B").strip("()").split(";"):
            match = CELL.fullmatch(part)
            assert match, cell
            stage, kind, number, piece = match.groups()
            unit = int(number or 0)
            if kind in WORK or kind in ENDS:
                unit = unit * self.slices + int(piece or 0)
            found.append(Key(int(stage), kind, unit))
        return tuple(found)

    @property
    def stages(self) -> int:
        return len(self.table[0])

    @property
    def units(self) -> int:
        return self.microbatches * self.slices * self.iterations

    def home(self, stage: int, unit: int) -> int:
        """The rank where a stage lives for a unit."""
        one = unit // self.slices % self.microbatches
        return self.table[one * len(self.table) // self.microbatches][stage]

    def spots(self) -> Iterator[tuple[int, int, Key]]:
        """Rank, index of the cell, and action."""
        for rank, row in enumerate(self.cells):
            for index, keys in enumerate(row):
                for key in keys:
                    yield rank, index, key


def causes(order: Order) -> set[str]:
    """Everything that is wrong, in words of ``debubble check``.

    What is not there, not in its place or before its need can be the reason for all else, so
    transfers and shards are looked at only where it is, and waits at last.
    """
    found = set(_steps(order)) | set(_structure(order))
    if not found:
        found |= set(_transfers(order)) | set(_shards(order))
    if not found and _stuck(order):
        found.add("deadlock")
    if order.memory is not None and "out-of-range" not in found and _peak(order) > order.memory:
        found.add("memory")
    return found


def _structure(order: Order) -> Iterator[str]:
    seen: Counter[Key] = Counter()
    at: dict[Key, tuple[int, int]] = {}
    for rank, index, key in order.spots():
        if key.kind not in WORK and key.kind not in ENDS:
            continue
        if key.stage >= order.stages or key.unit >= order.units:
            yield "out-of-range"
            continue
        if order.home(key.stage, key.unit) != rank:
            yield "wrong-rank"
        if key.kind in ENDS:
            continue
        seen[key] += 1
        at.setdefault(key, (rank, index))
    if any(count > 1 for count in seen.values()):
        yield "duplicate"
    for row in order.cells:
        for keys in row:
            if len(keys) > 1 and (
                any(key.kind not in WORK for key in keys)
                or len({(key.stage, key.unit) for key in keys}) < len(keys)
            ):
                yield "bad-pair"
    for stage in range(order.stages):
        for unit in range(order.units):
            forward, into, weight, full = (Key(stage, kind, unit) in seen for kind in WORK)
            if full and (into or weight):
                yield "mixed-backward"
            if not forward or not (full or (into and weight)):
                yield "missing"
            for one, needs in (("I", "F"), ("W", "I"), ("B", "F")):
                if _early(at, Key(stage, one, unit), Key(stage, needs, unit)):
                    yield "order"
            if unit % order.slices:
                if _early(at, Key(stage, "F", unit), Key(stage, "F", unit - 1)):
                    yield "order"
                for one in "IB":
                    for other in "IB":
                        if _early(at, Key(stage, one, unit - 1), Key(stage, other, unit)):
                            yield "order"


def _early(at: dict[Key, tuple[int, int]], one: Key, needs: Key) -> bool:
    """Whether an action stands before what it needs on the same rank."""
    if one not in at or needs not in at or at[one][0] != at[needs][0]:
        return False
    return at[one][1] < at[needs][1]


def _steps(order: Order) -> Iterator[str]:
    """Steps of an iteration each, in order, behind its backwards and before the next ones'."""
    all_keys = [key for _, _, key in order.spots()]
    if order.iterations == 1 and not any(key.kind == "OPT" for key in all_keys):
        return
    period = order.microbatches * order.slices
    for row in order.cells:
        keys = [key for cell in row for key in cell]
        steps = [key.unit for key in keys if key.kind == "OPT"]
        if steps != list(range(order.iterations)):
            yield "optimizer"
            continue
        done = 0
        for key in keys:
            if key.kind == "OPT":
                done += 1
            elif key.unit < order.units and key.kind in "IWB":
                iteration = key.unit // period
                if iteration < done or (iteration > done and key.kind in "WB"):
                    yield "optimizer"
            elif key.kind == "F" and done + 1 <= key.unit // period < order.iterations:
                yield "weight-versions"


def _transfers(order: Order) -> Iterator[str]:
    """Ends exist on their ranks, once, with their other ends, in the same order on a link."""
    ends = [(rank, key) for rank, _, key in order.spots() if key.kind in ENDS]
    if not ends:
        return
    links: dict[tuple[int, int, bool], list[tuple[str, int, int]]] = {}
    there = Counter(key for _, key in ends)
    for rank, key in ends:
        stage, kind, unit = key
        other = stage + queues.STEP[kind]
        sends = kind.startswith("SEND")
        if not 0 <= other < order.stages:
            yield "transfer"
            continue
        if there[key] > 1:
            yield "transfer"
        peer = order.home(other, unit)
        if Key(other, queues.OTHER[kind], unit) not in there or peer == rank:
            yield "transfer"
        link = (rank, peer) if sends else (peer, rank)
        name = (kind[-1], unit, stage if sends else other)
        links.setdefault((*link, sends), []).append(name)
    for stage in range(order.stages - 1):
        for unit in range(order.units):
            # What moves between ranks is sent, where anything is.
            if order.home(stage, unit) != order.home(stage + 1, unit) and not {
                Key(stage, "SEND_F", unit), Key(stage + 1, "RECV_F", unit),
                Key(stage + 1, "SEND_B", unit), Key(stage, "RECV_B", unit),
            } <= set(there):  # fmt: skip
                yield "transfer"
    for (one, peer, sends), names in links.items():
        if sends and links.get((one, peer, False), names) != names:
            yield "transfer"


def _shards(order: Order) -> Iterator[str]:
    """Gradients reduced once when complete; weights gathered before use, and dropped once."""
    kinds = {key.kind for _, _, key in order.spots()}
    period = order.microbatches * order.slices
    for row in order.cells:
        keys = [key for cell in row for key in cell]
        for stage in {key.stage for key in keys if key.kind in WORK}:
            mine = [key for key in keys if key.stage == stage and key.kind in (*WORK, *SHARDS)]
            if "REDUCE_GRAD" in kinds and _reduced(mine, order.iterations, period):
                yield "reduce-grad"
            if any(key.kind in ("UNSHARD", "RESHARD") for key in mine) and _weights(mine):
                yield "unshard"
        stray = {key.stage for key in keys if key.kind == "REDUCE_GRAD"}
        if stray - {key.stage for key in keys if key.kind in WORK}:
            yield "reduce-grad"
        lost = {key.stage for key in keys if key.kind in ("UNSHARD", "RESHARD")}
        if lost - {key.stage for key in keys if key.kind in WORK}:
            yield "unshard"


def _reduced(keys: list[Key], iterations: int, period: int) -> bool:
    for iteration in range(iterations):
        made = [
            at for at, key in enumerate(keys)
            if key.kind in ("W", "B") and key.unit // period == iteration
        ]  # fmt: skip
        here = [
            at for at, key in enumerate(keys) if key == Key(key.stage, "REDUCE_GRAD", iteration)
        ]
        if len(here) != 1 or here[0] < max(made):
            return True
    return any(key.kind == "REDUCE_GRAD" and key.unit >= iterations for key in keys)


def _weights(keys: list[Key]) -> bool:
    held = used = False
    for key in keys:
        if key.kind == "UNSHARD":
            if held:
                return True
            held, used = True, False
        elif key.kind == "RESHARD":
            if not held or not used:
                return True
            held = False
        elif key.kind in WORK:
            if not held:
                return True
            used = True
    return held and not used


def _stuck(order: Order) -> bool:
    """Whether ranks get stuck."""
    kinds = {key.kind for _, _, key in order.spots()}
    if not kinds & set(ENDS):
        return not _runs(order)
    bare = [
        [cell for cell in row if not any(kind in cell for kind in SHARDS)] for row in order.rows
    ]
    told: Any = SimpleNamespace(
        rows=lambda: bare, placement=SimpleNamespace(table=order.table), stages=order.stages
    )
    modes = (order.mode,) if order.mode else ("pair", "group", "blocking")
    return any(not queues.runs(told, mode) for mode in modes)


def _runs(order: Order) -> bool:
    """Whether all ranks come to the end of their rows, without explicit transfers."""
    done: set[Key] = set()
    heads = [0] * len(order.cells)

    def ready(key: Key, beside: tuple[Key, ...]) -> bool:
        stage, kind, unit = key
        have = done | set(beside)
        needs: list[set[Key]] = []
        if kind == "F":
            needs = [{Key(stage - 1, "F", unit)}] if stage else []
            if unit % order.slices:
                needs.append({Key(stage, "F", unit - 1)})
        elif kind in ("I", "B"):
            needs = [{Key(stage, "F", unit)}]
            if stage + 1 < order.stages:
                needs.append({Key(stage + 1, "I", unit), Key(stage + 1, "B", unit)})
            if (unit + 1) % order.slices:
                needs.append({Key(stage, "I", unit + 1), Key(stage, "B", unit + 1)})
        elif kind == "W":
            needs = [{Key(stage, "I", unit)}]
        return all(need & have for need in needs)

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(order.cells):
            while heads[rank] < len(row):
                keys = row[heads[rank]]
                if keys[0].kind == "OPT":
                    together = all(
                        heads[other] < len(line) and line[heads[other]][0].kind == "OPT"
                        for other, line in enumerate(order.cells)
                    )
                    if not together:
                        break
                    # All ranks step at once.
                    heads = [head + 1 for head in heads]
                    moved = True
                    continue
                if not all(ready(key, ()) for key in keys):
                    break
                done.update(keys)
                heads[rank] += 1
                moved = True
    return all(head == len(row) for head, row in zip(heads, order.cells, strict=True))


def _peak(order: Order) -> float:
    """Most activations of a rank, of one copy: F holds its stage's share until W or B has ended."""
    share = len(order.cells) / order.stages / order.slices
    most = 0.0
    for row in order.cells:
        held = 0.0
        for keys in row:
            held += share * sum(key.kind == "F" for key in keys)
            most = max(most, held)
            held -= share * sum(key.kind in ("W", "B") for key in keys)
    return most
