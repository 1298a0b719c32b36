"""Makes ``corrupt.jsonl``: good orders of every sort, each damaged in every way.

``python -m tests.corpus.damage`` writes the file again. What is wrong with an order is known twice:
from the damage that was done, and from :mod:`tests.corpus.judge`; where these two do not agree
nothing is written. What ``debubble check`` says is not asked for here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import debubble as db
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import add_transfers
from tests.corpus.judge import CELL, ENDS, SHARDS, WORK, Order, causes

FILE = Path(__file__).with_name("corrupt.jsonl")
EACH = 2
"""Cases of one damage of one order at most."""

FAMILIES: dict[str, Callable[[], db.Schedule]] = {
    "1f1b": lambda: db.make("1f1b", ranks=3, microbatches=3),
    "gpipe, two iterations": lambda: db.make("gpipe", ranks=2, microbatches=2, iterations=2),
    "1f1b, two iterations": lambda: db.make("1f1b", ranks=2, microbatches=2, iterations=2),
    "zb-h1": lambda: db.make("zb-h1", ranks=2, microbatches=3),
    "zb-v": lambda: db.make("zb-v", ranks=2, microbatches=3),
    "interleaved-1f1b": lambda: db.make("interleaved-1f1b", ranks=2, microbatches=2),
    "hanayo": lambda: db.make("hanayo", ranks=2, microbatches=2),
    "dualpipe": lambda: db.make("dualpipe", ranks=2, microbatches=4),
    "dualpipe-v": lambda: db.make("dualpipe-v", ranks=2, microbatches=4),
    "chimera": lambda: db.make("chimera", ranks=2, microbatches=2),
    "seq1f1b": lambda: db.make("seq1f1b", ranks=2, microbatches=2, slices=2),
    "1f1b with transfers": lambda: add_transfers(db.make("1f1b", ranks=2, microbatches=3)),
    "zb-h1 with transfers": lambda: add_transfers(db.make("zb-h1", ranks=3, microbatches=3)),
    "interleaved-1f1b with transfers": lambda: add_transfers(
        db.make("interleaved-1f1b", ranks=2, microbatches=2)
    ),
    "1f1b, fully sharded": lambda: add_sharding(
        add_transfers(db.make("1f1b", ranks=2, microbatches=2)), mode="fsdp"
    ),
    "interleaved-1f1b, replicated": lambda: add_sharding(
        add_transfers(db.make("interleaved-1f1b", ranks=2, microbatches=2)), mode="ddp"
    ),
}


class Damaged(NamedTuple):
    """An order with one thing done to it."""

    rows: list[list[str]]
    done: str
    cause: str
    """What at least is wrong."""
    names: list[str]
    """Actions one of which has to be named; empty where it can be any."""
    change: dict[str, Any] = {}  # noqa: RUF012 - never written to
    """Other fields of the order."""


Damage = Callable[[Random, Order], Damaged | None]


class Spot(NamedTuple):
    """A cell that is one action: rank, place, text and kind, in rows that may be changed."""

    rank: int
    place: int
    cell: str
    kind: str
    rows: list[list[str]]


def at_one(*kinds: str) -> Callable[[Callable[[Random, Order, Spot], Damaged | None]], Damage]:
    """Damage to an action of these kinds; none where the order has no such action."""

    def wrap(change: Callable[[Random, Order, Spot], Damaged | None]) -> Damage:
        def damage(random: Random, order: Order) -> Damaged | None:
            spot = picked(random, order, *kinds)
            return None if spot is None else change(random, order, spot)

        return damage

    return wrap


def picked(random: Random, order: Order, *kinds: str) -> Spot | None:
    """Any action of these kinds."""
    found = [
        (rank, index, cell, match[2])
        for rank, row in enumerate(order.rows)
        for index, cell in enumerate(row)
        if (match := CELL.fullmatch(cell)) and match[2] in kinds
    ]
    return Spot(*random.choice(found), copied(order)) if found else None


def copied(order: Order) -> list[list[str]]:
    return [list(row) for row in order.rows]


def sort_of(kind: str, plain: str) -> str:
    """What is wrong where an action of a kind is lost or doubled; `plain` for work."""
    if kind in ENDS:
        return "transfer"
    if kind == "OPT":
        return "optimizer"
    return {"REDUCE_GRAD": "reduce-grad", "UNSHARD": "unshard", "RESHARD": "unshard"}.get(
        kind, plain
    )


def of_backward(cell: str) -> list[str]:
    """A cell; where other backwards of the order are split a lost one may be told as halves."""
    return [cell, cell.replace("B", "I")] if "B" in cell and "SEND" not in cell else [cell]


def dropped(*kinds: str) -> Damage:
    @at_one(*kinds)
    def damage(random: Random, order: Order, spot: Spot) -> Damaged | None:
        rank, index, cell, kind, rows = spot
        del rows[rank][index]
        names = [other_end(order, cell)] if kind in ENDS else of_backward(cell)
        return Damaged(rows, f"{cell} is dropped", sort_of(kind, "missing"), names)

    return damage


def other_end(order: Order, cell: str) -> str:
    """The other end of a transfer, which is what is told when one is lost."""
    from tests.fuzz.queues import OTHER, STEP

    (key,) = order.keys(cell)
    number = cell[len(str(key.stage)) + len(key.kind) :]
    return f"{key.stage + STEP[key.kind]}{OTHER[key.kind]}{number}"


def doubled(*kinds: str) -> Damage:
    @at_one(*kinds)
    def damage(random: Random, order: Order, spot: Spot) -> Damaged | None:
        rank, index, cell, kind, rows = spot
        rows[rank].insert(random.randint(index + 1, len(rows[rank])), cell)
        return Damaged(rows, f"{cell} is there twice", sort_of(kind, "duplicate"), [cell])

    return damage


def elsewhere(*kinds: str) -> Damage:
    @at_one(*kinds)
    def damage(random: Random, order: Order, spot: Spot) -> Damaged | None:
        if len(order.rows) < 2:
            return None
        rank, index, cell, kind, rows = spot
        del rows[rank][index]
        other = random.choice([one for one in range(len(rows)) if one != rank])
        rows[other].insert(random.randint(0, len(rows[other])), cell)
        return Damaged(
            rows, f"{cell} is on rank {other}, not {rank}",
            "wrong-rank" if kind in ENDS else sort_of(kind, "wrong-rank"), [cell],
        )  # fmt: skip

    return damage


def renumbered(part: str, *kinds: str) -> Damage:
    """Another stage or microbatch: one that there is, or (with a +) one that is not."""

    @at_one(*kinds)
    def damage(random: Random, order: Order, spot: Spot) -> Damaged | None:
        rank, index, cell, kind, rows = spot
        match = CELL.fullmatch(cell)
        assert match is not None
        stage, unit = int(match[1]), int(match[3] or 0)
        beyond = part.endswith("+")
        most = order.stages if part.startswith("stage") else order.microbatches * order.iterations
        if kind == "OPT":
            most = order.iterations if part.startswith("unit") else most
        now = stage if part.startswith("stage") else unit
        others = [most] if beyond else [one for one in range(most) if one != now]
        if not others:
            return None
        value = random.choice(others)
        if part.startswith("stage"):
            stage = value
        else:
            unit = value
        piece = f".{match[4]}" if match[4] else ""
        text = f"{stage}{kind}{unit}{piece}"
        rows[rank][index] = text
        if beyond:
            cause = "out-of-range" if kind in ENDS else sort_of(kind, "out-of-range")
            return Damaged(rows, f"{cell} is {text}", cause, [text])
        return Damaged(rows, f"{cell} is {text}", sort_of(kind, "missing"), of_backward(cell))

    return damage


def turned(into: str, *kinds: str) -> Damage:
    """Another kind of work."""

    @at_one(*kinds)
    def damage(random: Random, order: Order, spot: Spot) -> Damaged | None:
        rank, index, cell, kind, rows = spot
        rows[rank][index] = cell.replace(kind, into)
        lost = cell.replace(kind, "W") if (kind, into) == ("B", "I") else cell
        if (kind, into) in (("I", "B"), ("W", "B")):
            return Damaged(
                rows, f"{cell} is {rows[rank][index]}", "mixed-backward", [rows[rank][index]]
            )
        return Damaged(rows, f"{cell} is {rows[rank][index]}", "missing", of_backward(lost))

    return damage


@at_one("B")
def weight_again(random: Random, order: Order, spot: Spot) -> Damaged | None:
    rank, index, cell, _, rows = spot
    rows[rank].insert(index + 1, cell.replace("B", "W"))
    return Damaged(rows, f"a W follows {cell}", "mixed-backward", [cell])


def early(kind: str, needs: str) -> Damage:
    """An action before one of its stage and microbatch that it needs."""

    @at_one(kind)
    def damage(random: Random, order: Order, spot: Spot) -> Damaged | None:
        rank, index, cell, _, rows = spot
        need = cell.replace(kind, needs)
        if need not in order.rows[rank]:
            return None
        del rows[rank][index]
        rows[rank].insert(random.randint(0, order.rows[rank].index(need)), cell)
        return Damaged(rows, f"{cell} is before {need}", "order", [cell])

    return damage


@at_one("F", "B", "I")
def slices_swapped(random: Random, order: Order, spot: Spot) -> Damaged | None:
    if order.slices == 1:
        return None
    rank, index, cell, _, rows = spot
    stem, _, piece = cell.partition(".")
    other = f"{stem}.{1 - int(piece)}"
    if other not in order.rows[rank]:
        return None
    there = rows[rank].index(other)
    rows[rank][index], rows[rank][there] = other, cell
    return Damaged(rows, f"{cell} and {other} change places", "order", [other])


@at_one("F")
def paired(random: Random, order: Order, spot: Spot) -> Damaged | None:
    """A forward overlapped with its own backward."""
    rank, index, cell, _, rows = spot
    for kind in "BI":
        back = cell.replace("F", kind)
        if back in order.rows[rank]:
            rows[rank][index] = f"({cell};{back})OVERLAP_F_B"
            rows[rank].remove(back)
            return Damaged(rows, f"{cell} is overlapped with {back}", "bad-pair", [cell])
    return None


def shuffled(random: Random, order: Order) -> Damaged | None:
    """Ranks whose orders are good one by one, and wait for each other."""
    for _ in range(60):
        rows = copied(order)
        for _ in range(random.randint(1, 4)):
            row = random.choice(rows)
            first, second = (random.randrange(len(row)) for _ in range(2))
            row.insert(first, row.pop(second))
        if causes(with_rows(order, rows)) == {"deadlock"}:
            return Damaged(rows, "actions are moved along their ranks", "deadlock", [])
    return None


def moved_ends(mode: str) -> Damage:
    """Sends and receives that are moved, to where ranks wait for each other in one mode."""

    def damage(random: Random, order: Order) -> Damaged | None:
        if picked(random, order, *ENDS) is None:
            return None
        for _ in range(60):
            rows = copied(order)
            for _ in range(random.randint(1, 3)):
                row = random.choice(rows)
                ends = [at for at, cell in enumerate(row) if any(kind in cell for kind in ENDS)]
                if not ends:
                    continue
                at = random.choice(ends)
                row.insert(max(0, at + random.choice((-2, -1, 1, 2))), row.pop(at))
            if causes(with_rows(order, rows, mode=mode)) == {"deadlock"}:
                return Damaged(rows, "sends and receives are moved", "deadlock", [], {"mode": mode})
        return None

    return damage


@at_one("RECV_F", "RECV_B")
def receives_swapped(random: Random, order: Order, spot: Spot) -> Damaged | None:
    """Two receives of one link the other way round: the contents are swapped."""
    rank, index, cell, kind, rows = spot
    (key,) = order.keys(cell)
    rest = [
        at for at, other in enumerate(order.rows[rank])
        if at > index and kind in other and other.startswith(f"{key.stage}{kind}")
    ]  # fmt: skip
    if not rest:
        return None
    row = rows[rank]
    row[index], row[rest[0]] = row[rest[0]], row[index]
    return Damaged(rows, f"{cell} and {row[index]} change places", "transfer", [cell])


@at_one("RECV_F", "RECV_B")
def both_ends_dropped(random: Random, order: Order, spot: Spot) -> Damaged | None:
    send, cell = other_end(order, spot.cell), spot.cell
    rows = [[one for one in row if one not in (cell, send)] for row in order.rows]
    return Damaged(rows, f"{cell} and {send} are dropped", "transfer", [cell])


@at_one("REDUCE_GRAD")
def reduced_early(random: Random, order: Order, spot: Spot) -> Damaged | None:
    rank, index, cell, _, rows = spot
    del rows[rank][index]
    rows[rank].insert(random.randint(0, index // 2), cell)
    return Damaged(rows, f"{cell} is moved to the front", "reduce-grad", [cell])


@at_one("OPT")
def stepped(random: Random, order: Order, spot: Spot) -> Damaged | None:
    """A step that comes too early or too late."""
    rank, index, cell, _, rows = spot
    del rows[rank][index]
    rows[rank].insert(random.choice((max(0, index - 2), min(len(rows[rank]), index + 2))), cell)
    if rows[rank] == order.rows[rank]:
        return None
    return Damaged(rows, f"{cell} is moved", "", [])


def too_much(random: Random, order: Order) -> Damaged | None:
    if len(order.table) > 1 or any("OVERLAP" in cell for row in order.rows for cell in row):
        return None
    limit = random.choice((0.25, 0.4, 0.75))
    return Damaged(
        copied(order), f"ranks have memory for {limit:g}", "memory", [], {"memory": limit}
    )


def with_rows(order: Order, rows: list[list[str]], **change: Any) -> Order:
    fields = ("table", "microbatches", "slices", "iterations", "mode", "memory")
    return Order(rows, **{name: getattr(order, name) for name in fields} | change)


DAMAGES: dict[str, Damage] = {
    "F dropped": dropped("F"), "backward dropped": dropped("B", "I"), "W dropped": dropped("W"),
    "F doubled": doubled("F"), "backward doubled": doubled("B", "I"), "W doubled": doubled("W"),
    "F elsewhere": elsewhere("F"), "backward elsewhere": elsewhere("B", "I", "W"),
    "stage beyond": renumbered("stage+", *WORK), "unit beyond": renumbered("unit+", *WORK),
    "another stage": renumbered("stage", *WORK), "another unit": renumbered("unit", *WORK),
    "F for B": turned("F", "B"), "B for F": turned("B", "F"), "I for B": turned("I", "B"),
    "B for I": turned("B", "I"), "B for W": turned("B", "W"), "W again": weight_again,
    "backward early": early("B", "F"), "input early": early("I", "F"),
    "weight early": early("W", "I"), "slices swapped": slices_swapped, "paired": paired,
    "shuffled": shuffled, "end dropped": dropped(*ENDS), "end doubled": doubled(*ENDS),
    "end elsewhere": elsewhere(*ENDS), "end's unit beyond": renumbered("unit+", *ENDS),
    "end's stage beyond": renumbered("stage+", *ENDS),
    "receives swapped": receives_swapped, "both ends dropped": both_ends_dropped,
    "stuck in pairs": moved_ends("pair"), "stuck in groups": moved_ends("group"),
    "stuck where they block": moved_ends("blocking"),
    "step dropped": dropped("OPT"), "step doubled": doubled("OPT"), "step moved": stepped,
    "step beyond": renumbered("unit+", "OPT"), "shard action dropped": dropped(*SHARDS),
    "shard action doubled": doubled(*SHARDS), "reduced early": reduced_early,
    "too much": too_much,
}  # fmt: skip


def case_of(name: str, order: Order, damaged: Damaged) -> dict[str, Any] | None:
    """A case for the file, where damage and judge agree."""
    broken = with_rows(order, damaged.rows, **damaged.change)
    found = causes(broken)
    if not found or (damaged.cause and damaged.cause not in found):
        return None
    case: dict[str, Any] = {
        "name": f"{name}: {damaged.done}", "causes": sorted(found), "names": damaged.names,
        "microbatches": broken.microbatches, "stages": broken.table,
        "rows": [" ".join(row) for row in broken.rows],
    }  # fmt: skip
    for field, usual in (("slices", 1), ("iterations", 1), ("mode", None), ("memory", None)):
        if getattr(broken, field) != usual:
            case[field] = getattr(broken, field)
    return case


def order_of(schedule: db.Schedule) -> Order:
    """A schedule as text."""
    placement = schedule.placement
    return Order(
        schedule.rows(), [list(row) for row in placement.table], schedule.microbatches,
        schedule.slices, schedule.iterations,
    )  # fmt: skip


def main() -> None:
    lines: dict[str, str] = {}
    for name, make in FAMILIES.items():
        order = order_of(make())
        assert not causes(order), name
        for title, damage in DAMAGES.items():
            random = Random(f"{name} {title}")
            kept = 0
            for _ in range(6 * EACH):
                damaged = damage(random, order)
                case = None if damaged is None else case_of(name, order, damaged)
                if case is None:
                    continue
                key = json.dumps([case["rows"], case.get("mode"), case.get("memory")])
                if key in lines:
                    continue
                lines[key] = json.dumps(case)
                kept += 1
                if kept == EACH:
                    break
    FILE.write_text("\n".join(lines.values()) + "\n", encoding="utf-8")
    print(f"{len(lines)} cases in {FILE.name}")


if __name__ == "__main__":
    main()
