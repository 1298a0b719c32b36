"""Overlapped groups: their bounds, and the time they take together."""

from __future__ import annotations

from typing import NamedTuple

from debubble.core.actions import KIND_MASK, PAIR_SHIFT, STAGE_SHIFT
from debubble.engine.jit import Array, helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.carry import hand_carried, take_carried
from debubble.engine.kernels.layout import (
    DONE,
    FAILED,
    Frame,
    Item,
    Maybe,
    Program,
    new_cost,
    read_item,
)
from debubble.engine.kernels.side_streams import join_side
from debubble.engine.kernels.work import begin_work, end_work, readiness

# Bits of actions that run alone, and of the first and last of a group.
ALONE, FIRST, LAST, MIDDLE = range(4)
MOST_MEMBERS = 16

ROWS = (KIND_MASK + 1) * at.WIDTH
"""Length of the table of kinds, in which a kind's row is where its columns begin."""

TRIES = 8
"""Places in the hash table of costs of groups that are looked at for one."""


class Group(NamedTuple):
    """The group at hand, the last pair of every place, and a hash table of the times of groups.

    Of every member: its row of columns, its place, and the result that it waits for. Of the place
    of a first member: the pair it was in last, and the time of that.
    """

    row: Array
    place: Array
    wanted: Array
    pair: Array
    pair_id: Array
    key: Array
    id: Array


@helper
def run_group(
    item: Item, stop: int, frame: Frame, group: Group, transfers: Maybe, side: Maybe, carry: Maybe
) -> int:
    """Run the group that begins with an action, and give the rank its next one.

    Returns an outcome.
    """
    begin, rank = item.here, item.rank
    members = members_of(begin, stop, frame.program)
    if members == 0:
        return FAILED
    for index in range(members):
        member = read_item(begin + index, rank, frame) if index > 0 else item
        outcome, wanted = readiness(member, frame, transfers, side, carry)
        if outcome != DONE:
            return outcome
        group.row[index] = member.row
        group.place[index] = member.place
        group.wanted[index] = wanted
    if carry is not None:
        for index in range(members):
            member = read_item(begin + index, rank, frame) if index > 0 else item
            take_carried(member, frame, transfers, carry)
    # Each member waits at a node of its own; the last one is that of the group. It begins with a
    # number that is no constant: for 0 numba would compile `end_work` once more.
    end = begin
    for index in range(members):
        member = read_item(begin + index, rank, frame) if index > 0 else item
        if side is not None:
            join_side(member, frame, side)
        end = begin_work(member, group.wanted[index], frame, transfers)
    frame.graph.cost[end] = group_cost(members, frame, group)
    for index in range(members):
        member = read_item(begin + index, rank, frame) if index > 0 else item
        end_work(member, end, frame, transfers, side)
    if carry is not None:
        # As where sends are actions: what goes to neighbors is sent first.
        for index in range(members):
            member = read_item(begin + index, rank, frame) if index > 0 else item
            hand_carried(member, end, frame, transfers, carry)
    frame.turns.next_action[rank] = begin + members
    return DONE


@helper
def members_of(here: int, stop: int, program: Program) -> int:
    """Return the number of actions of the group that starts at a position; 0 if it is none.

    The members of a group are work of different stages or microbatches.
    """
    actions, kinds = program.actions, program.kinds
    if (actions[here] >> PAIR_SHIFT) & 3 != FIRST:
        return 0
    position = here
    bits = FIRST
    while True:
        if kinds[(actions[position] & KIND_MASK) * at.WIDTH + at.SORT] != at.WORK:
            return 0
        for member in range(here, position):
            if (actions[member] ^ actions[position]) >> STAGE_SHIFT == 0:
                return 0
        if bits == LAST:
            return position + 1 - here
        position += 1
        if position == stop or position - here == MOST_MEMBERS:
            return 0
        bits = (actions[position] >> PAIR_SHIFT) & 3
        if bits < LAST:
            return 0


@helper
def group_cost(members: int, frame: Frame, group: Group) -> int:
    """Return the cost index of the group at hand: of a pair with a forward, or a sum of several."""
    places, kinds = frame.sizes.places, frame.program.kinds
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
        time = known_cost(kind, a, b, frame, group)
    if members == 2:
        group.pair[home] = pair
        group.pair_id[home] = time
    return time


@helper
def known_cost(kind: int, a: int, b: int, frame: Frame, group: Group) -> int:
    """Return the cost index of a pair or sum; a new one where the hash table does not have it."""
    base = frame.sizes.base
    key = ((kind + 2) * (base + len(frame.rare.kind)) + a) * base + b + 1
    spot = (key ^ (key >> 13)) * 40503 & (len(group.key) - 1)
    tries = 1
    while group.key[spot] != 0 and group.key[spot] != key and tries < TRIES:
        spot = (spot + 1) & (len(group.key) - 1)
        tries += 1
    if group.key[spot] != key:
        # Where no place is left, one is used again: its cost comes twice.
        group.key[spot] = key
        group.id[spot] = new_cost(kind, a, b, frame)
    index: int = group.id[spot]
    return index
