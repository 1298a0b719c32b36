"""Overlapped groups: their bounds, and the time they take together."""

from __future__ import annotations

from typing import NamedTuple

from debubble.core.actions import KIND_MASK, PAIR_SHIFT, STAGE_SHIFT
from debubble.engine.jit import Array, helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    Program,
    Rare,
    Sizes,
    new_cost,
)

# Bits of actions that run alone, and of the first and last of a group.
ALONE, FIRST, LAST, MIDDLE = range(4)
MOST_MEMBERS = 16

ROWS = (KIND_MASK + 1) * at.WIDTH
"""Length of the table of kinds, in which a kind's row is where its columns begin."""

TRIES = 8
"""Places in the hash table of costs of groups that are looked at for one."""


class Group(NamedTuple):
    """The group at hand, the last pair of every place, and a hash table of the times of groups.

    Of every member: its row of columns, its place, its cell, and the result that it waits for. Of
    the place of a first member: the pair it was in last, and the time of that.
    """

    row: Array
    place: Array
    cell: Array
    wanted: Array
    pair: Array
    pair_id: Array
    key: Array
    id: Array


@helper
def members_of(here: int, stop: int, program: Program) -> int:
    """How many actions the group that starts `here` has; ``-at.BAD_GROUP`` where it is none."""
    actions, kinds = program.actions, program.kinds
    if (actions[here] >> PAIR_SHIFT) & 3 != FIRST:
        return -at.BAD_GROUP
    position = here
    bits = FIRST
    while True:
        if kinds[(actions[position] & KIND_MASK) * at.WIDTH + at.SORT] != at.WORK:
            return -at.BAD_GROUP
        for member in range(here, position):
            if (actions[member] ^ actions[position]) >> STAGE_SHIFT == 0:
                return -at.BAD_GROUP
        if bits == LAST:
            return position + 1 - here
        position += 1
        if position == stop or position - here == MOST_MEMBERS:
            return -at.BAD_GROUP
        bits = (actions[position] >> PAIR_SHIFT) & 3
        if bits < LAST:
            return -at.BAD_GROUP


@helper
def group_cost(
    members: int, kinds: Array, group: Group, sizes: Sizes, rare: Rare, state: Array
) -> int:
    """Cost index of the group at hand: of a pair with a forward, or a sum of several."""
    places = sizes.places
    home = unsigned(group.place[0])
    pair = (group.row[0] * ROWS + group.row[1]) * places + group.place[1] + 1
    if members == 2 and group.pair[home] == pair:
        last: int = group.pair_id[home]
        return last
    time: int = 1 + kinds[group.row[0] + at.COST] * places + group.place[0]
    halves = kinds[group.row[0] + at.HALF]
    for index in range(1, members):
        row, place = group.row[index], group.place[index]
        kind, a, b = at.SUM, time, 1 + kinds[row + at.COST] * places + place
        if members == 2 and halves + kinds[row + at.HALF] == 3:
            kind, a, b = kinds[row + at.COST], group.place[0], place
            if halves == 2:
                kind, a, b = kinds[group.row[0] + at.COST], place, group.place[0]
        elif members == 2 and halves == 1 and kinds[row + at.HALF] == 1:
            kind, a, b = at.FORWARDS, group.place[0], place
        halves = kinds[row + at.HALF]
        key = ((kind + 2) * (sizes.base + len(rare.kind)) + a) * sizes.base + b + 1
        spot = (key ^ (key >> 13)) * 40503 & (len(group.key) - 1)
        tries = 1
        while group.key[spot] != 0 and group.key[spot] != key and tries < TRIES:
            spot = (spot + 1) & (len(group.key) - 1)
            tries += 1
        if group.key[spot] != key:
            # Where no place is left, one is used again: its cost comes twice.
            group.key[spot] = key
            group.id[spot] = new_cost(kind, a, b, sizes, rare, state)
        time = group.id[spot]
    if members == 2:
        group.pair[home] = pair
        group.pair_id[home] = time
    return time
