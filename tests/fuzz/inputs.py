"""Valid inputs at random, and what becomes of them when they are damaged."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import debubble as db
from debubble.interchange.schedule_json import to_json
from debubble.interchange.torch_csv import to_csv, with_transfers
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import add_transfers

NAMES = [entry.name for entry in db.schedules()]
SEARCHED = {entry.name for entry in db.schedules() if entry.uses_costs}
WORDS = (
    "", " ", "-1", "0", "1", "7", "1048575", "1048576", "99999999999", "1e309", "nan", "0.5", "٣",
    "0F0", "0B0", "1F1", "0I0", "0W0", "5OPT0", "0OPT0", "0OPT9", "0R0", "0S0", "0T0", "0OFFLOAD0",
    "0RELOAD0", "0UNSHARD", "0RESHARD", "0REDUCE_GRAD", "0SEND_F0", "1RECV_F0", "0SEND_B0",
    "(0F1;0B0)OVERLAP_F_B", "(0F0;0F0)OVERLAP_F_B", "0F0.1", "0F-1", "null", "true", "[]", "{}",
    "\\", '"', "\x00", "\n", ",", ";", "(", ")", "<img onerror=1>", "é", "1f1b", "seq1f1b",
)  # fmt: skip
TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)


def made(random: Random, *, searched: bool = True) -> db.Schedule:
    """A small schedule of any family, with or without optimizer steps."""
    while True:
        name = random.choice(NAMES)
        if not searched and name in SEARCHED:
            continue
        options: dict[str, Any] = {"ranks": random.randint(1, 5), "microbatches": 1}
        options["microbatches"] = random.randint(1, 8) * random.choice((1, options["ranks"]))
        if random.random() < 0.3:
            options["iterations"] = random.randint(1, 3)
        try:
            return db.make(name, **options)
        except db.DebubbleError:
            continue


def damaged(random: Random, text: str) -> str:
    """A text with a few of its words, lines or characters changed."""
    for _ in range(random.randint(1, 3)):
        tokens = TOKEN.findall(text) or [""]
        spot, other = (random.randrange(len(tokens)) for _ in range(2))
        match random.randrange(8):
            case 0:
                tokens[spot] = random.choice(WORDS)
            case 1:
                tokens[spot], tokens[other] = tokens[other], tokens[spot]
            case 2:
                del tokens[spot : spot + random.randint(1, 4)]
            case 3:
                tokens.insert(spot, tokens[other])
            case 4:
                tokens[spot] = re.sub(r"\d", lambda _: str(random.randrange(12)), tokens[spot])
            case 5:
                lines = text.split("\n")
                random.shuffle(lines)
                tokens = ["\n".join(lines)]
            case 6:
                tokens[spot] = tokens[spot] + random.choice(WORDS)
            case _:
                tokens[spot] = "".join(random.sample(tokens[spot], len(tokens[spot])))
        text = "".join(tokens)
    return text


def csv(random: Random) -> str:
    """A CSV of computations, or with transfers and sharding."""
    while True:
        schedule = made(random, searched=False)
        try:
            if random.random() < 0.5:
                return to_csv(schedule, False)
            lowered = with_transfers(schedule)
            if random.random() < 0.4:
                lowered = add_sharding(lowered, mode=random.choice(("ddp", "fsdp")))
            return to_csv(lowered, True)
        except db.DebubbleError:
            continue


def schedule_json(random: Random) -> str:
    """A schedule file."""
    schedule = made(random)
    try:
        if random.random() < 0.2:
            schedule = add_transfers(schedule)
    except db.DebubbleError:
        pass
    return to_json(schedule)


def cost_data(random: Random) -> dict[str, Any]:
    """Costs as a cost file has them."""
    stages = random.randint(1, 4)

    def number() -> Any:
        return random.choice((0, 1, 0.5, 2.25, 1e-9, 1e9))

    def some(*keys: str) -> dict[str, Any]:
        return {
            key: random.choice((number(), [number()] * stages))
            for key in random.sample(keys, random.randint(0, len(keys)))
        }

    data = {
        "name": random.choice(("x", "a name")),
        "ranks": stages,
        "microbatches": random.randint(1, 9),
        "basis": random.choice(("rank", "action")),
        "times": {"F": number(), "p2p": number()} | some("I", "W", "R", "OPT"),
        "memory": {"unit": "GB"} | some("activation", "kv"),
        "expected": {"anything": [number(), "x"]},
    }
    return {key: data[key] for key in data if key == "times" or random.random() < 0.6}


def cost_text(random: Random, ending: str) -> str:
    """The text of a cost file."""
    data = cost_data(random)
    if ending == "toml":
        plain = {key: value for key, value in data.items() if not isinstance(value, dict)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
        for name in ("times", "memory"):
            if name not in data:
                continue
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in data[name].items()]
        return "\n".join(lines) + "\n"
    if ending == "yaml":
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in data.items())
    return json.dumps(data, indent=random.choice((None, 1)))


def lowered(random: Random) -> db.Schedule:
    """A schedule with transfers whose receives, sends and computations were moved about."""
    while True:
        schedule = made(random, searched=False)
        placement = schedule.placement
        if placement.copies > 1 or schedule.slices > 1 or schedule.iterations > 1:
            continue
        policy = random.choice(("eager", "just-in-time", "queued"))
        try:
            rows = add_transfers(schedule, policy=policy).rows()
        except db.DebubbleError:
            continue
        if not re.fullmatch(r"[\d\sA-Z_]*", " ".join(cell for row in rows for cell in row)):
            continue
        if re.search(r"OPT|OFFLOAD|RELOAD|[^A-Z_](S|T|R)\d", " ".join(map(" ".join, rows))):
            continue
        for _ in range(random.choice((0, 1, 1, 2, 5))):
            cells = random.choice(rows)
            if len(cells) < 2:
                continue
            spot = random.randrange(len(cells))
            match random.randrange(4):
                case 0:
                    cells.insert(random.randrange(len(cells)), cells.pop(spot))
                case 1:
                    near = max(0, spot - random.randint(1, 3))
                    cells[spot], cells[near] = cells[near], cells[spot]
                case 2:
                    del cells[spot]
                case _:
                    cells.insert(random.randrange(len(cells)), random.choice(random.choice(rows)))
        return db.Schedule.from_text(rows, placement, schedule.microbatches)
