"""Why a graph of events has no order, in words: the shortest circle of actions in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from debubble.core.actions import Action, Kind, unpack
from debubble.core.errors import ScheduleError
from debubble.engine.diagnose import dependencies
from debubble.engine.events import Edges, Events, Ids

SEARCH_LIMIT = 400
"""Events up to which every one is tried as the start of the shortest circle.

Beyond, an action that waits for a later one of its own rank is found among any number; longer
circles are looked for through the events that streams are stuck at, and where none of these is on
one, through events that are.
"""


def explain_circle(events: Events, edges: Sequence[Edges], place: Ids) -> ScheduleError:
    """The error for events that wait for each other.

    Parameters
    ----------
    events, edges
        What was sorted.
    place
        Node of every event, 0 for those that wait for ever, shape ``(events,)``.
    """
    rest = _Rest(events, edges, place)
    circle = rest.shortest_circle()
    texts, story = [], []
    made = rest.halves(circle[-1], circle[0])[1]
    for (event, turn), following in zip(circle, circle[1:] + circle[:1], strict=True):
        wants, makes = rest.halves((event, turn), following)
        if wants != made:
            texts.append(rest.text(made))
            verb = "runs together with" if events.meets[made] < 0 else "is the other end of"
            story.append(f"{texts[-1]} {verb} {rest.text(wants)}")
        texts.append(rest.text(wants))
        verb = "runs after" if turn else "waits for"
        if events.meets[wants] >= 0 and events.meets[makes] >= 0:
            verb = "is queued behind"
        story.append(f"{texts[-1]} {verb} {rest.text(makes)}")
        made = makes
    first, last = circle[0][0], circle[-1][0]
    if len(texts) == 2 and events.rank[first] == events.rank[last]:
        waiting, wanted = texts if not circle[0][1] else texts[::-1]
        name = wanted.split()[0]
        story = [f"{waiting} waits for {wanted}, which comes after it; move {name} before it"]
        return ScheduleError(f"a deadlock: {story[0]}", (waiting, wanted))
    return ScheduleError(
        f"a deadlock: these actions wait for each other: {', '.join(story)}", tuple(texts)
    )


class _Rest:
    """The events that wait for ever, and what they wait for among themselves."""

    def __init__(self, events: Events, edges: Sequence[Edges], place: Ids) -> None:
        self.events = events
        consumers, producers, turns = [], [], []
        for edge in edges:
            here = (place[edge.consumer] == 0) & (place[edge.producer] == 0)
            consumers.append(edge.consumer[here])
            producers.append(edge.producer[here])
            turns.append(np.full(len(consumers[-1]), edge.turn))
        consumer = np.concatenate(consumers)
        # By event, in the order in which rules name them.
        order = np.argsort(consumer, kind="stable")
        self._producer = np.concatenate(producers)[order]
        self._turn = np.concatenate(turns)[order]
        self._waiting, begin = np.unique(consumer[order], return_index=True)
        self._begin = np.append(begin, len(order))
        self._named = order[begin]
        self._known: dict[int, list[tuple[int, bool]]] = {}

    def waits(self, event: int) -> list[tuple[int, bool]]:
        """The events that one waits for, and whether for its turn behind them."""
        if event not in self._known:
            index = int(np.searchsorted(self._waiting, event))
            part = slice(*self._begin[index : index + 2].tolist())
            self._known[event] = list(
                zip(self._producer[part].tolist(), self._turn[part].tolist(), strict=True)
            )
        return self._known[event]

    def text(self, position: int) -> str:
        """An action and its rank."""
        return f"{self.events.text(position)} (rank {int(self.events.rank[position])})"

    def halves(self, step: tuple[int, bool], following: tuple[int, bool]) -> tuple[int, int]:
        """The actions of two events of which the first waits for the second."""
        (waiting, turn), (wanted, _) = step, following
        if self.events.meets[waiting] >= 0 or self.events.meets[wanted] >= 0:
            return self._ends(waiting, wanted)
        if not turn:
            for one in self._parts(waiting):
                needs = dependencies(self.events.schedule, self._action(one))
                for other in self._parts(wanted):
                    action = self._action(other)
                    if action in needs or action._replace(kind=Kind.I) in needs:
                        return one, other
        return waiting, wanted

    def _ends(self, waiting: int, wanted: int) -> tuple[int, int]:
        """The ends on one rank through which a queued transfer waits, or is waited for."""
        meets, rank = self.events.meets, self.events.rank
        ends = [
            (int(one), int(other))
            for one in (waiting, meets[waiting])
            for other in (wanted, meets[wanted])
            if one >= 0 and other >= 0 and rank[one] == rank[other]
        ]
        return next((pair for pair in ends if pair[1] < pair[0]), ends[0])

    def _parts(self, event: int) -> tuple[int, ...]:
        stop = event + 1
        while stop < len(self.events.pair) and self.events.pair[stop] >= 2:
            stop += 1
        return tuple(range(event, stop)) if self.events.pair[event] == 1 else (event,)

    def _action(self, position: int) -> Action:
        return unpack(int(self.events.schedule.actions[position]))

    def shortest_circle(self) -> list[tuple[int, bool]]:
        """Actions of the circle with the fewest waits for data.

        Each comes with whether it waits for its turn behind the next, or for its data.
        """
        best = self._shortest_through(self._starts()) or self._shortest_through(self._on_circles())
        assert best, "events that wait for ever form a circle"
        return best

    def _shortest_through(self, starts: list[int]) -> list[tuple[int, bool]]:
        best: list[tuple[int, bool]] = []
        fewest = (len(self._turn) + 1, 0)
        # A wait through events that are no actions is one wait, however many they are.
        actions_only = int(self._waiting[-1]) < len(self.events.rank)
        for start in starts:
            circle = self._circle_through(start, fewest[0] if actions_only else len(self._turn))
            size = (sum(not turn for _, turn in circle), len(circle))
            if circle and size < fewest:
                best, fewest = circle, size
        return best

    def _starts(self) -> list[int]:
        in_turn = np.argsort(self._named)
        if len(in_turn) <= SEARCH_LIMIT:
            every: list[int] = self._waiting[in_turn].tolist()
            return every
        rank, count = self.events.rank, len(self.events.rank)
        # Every wait by the index of its event.
        index = np.repeat(np.arange(len(in_turn)), np.diff(self._begin))
        event, producer = self._waiting[index], self._producer
        near = np.flatnonzero((producer > event) & (producer < count) & ~self._turn)
        near = near[rank[event[near]] == rank[producer[near]]]
        if len(near):
            return [int(event[near[np.argmin(self._named[index[near]])]])]
        turns = np.bincount(index, weights=self._turn, minlength=len(in_turn))
        heads: list[int] = self._waiting[in_turn[turns[in_turn] == 0]].tolist()
        return heads[:SEARCH_LIMIT]

    def _on_circles(self) -> list[int]:
        """Events to which it leads back to go from each event to the first it waits for."""
        ahead = np.searchsorted(self._waiting, self._producer[self._begin[:-1]])
        # Twice as many steps every time, until no start is outside its circle.
        for _ in range(len(ahead).bit_length()):
            ahead = ahead[ahead]
        found: list[int] = self._waiting[np.unique(ahead)].tolist()
        return found[:SEARCH_LIMIT]

    def _circle_through(self, start: int, most: int) -> list[tuple[int, bool]]:
        """The circle through one event with the fewest waits for data.

        Empty when there is none with `most` of them.
        """
        came: dict[int, tuple[int, bool]] = {}
        queue = deque(
            (producer, start, turn, int(not turn)) for producer, turn in self.waits(start)
        )
        while queue:
            event, before, turn, waits = queue.popleft()
            if event in came:
                continue
            if waits > most:
                break
            came[event] = (before, turn)
            if event == start:
                return self._corners(came, start)
            for producer, behind in self.waits(event):
                if behind:
                    queue.appendleft((producer, event, True, waits))
                else:
                    queue.append((producer, event, False, waits + 1))
        return []

    def _corners(self, came: dict[int, tuple[int, bool]], start: int) -> list[tuple[int, bool]]:
        """The actions at which the circle changes between waiting for turns and for data."""
        path: list[tuple[int, bool]] = []
        event = start
        while True:
            event, turn = came[event]
            path.append((event, turn))
            if event == start:
                break
        path.reverse()
        count = len(self.events.rank)
        # A wait through an event that is no action is a wait of the action before it.
        merged: list[tuple[int, bool]] = []
        while path[0][0] >= count:
            path.append(path.pop(0))
        for event, turn in path:
            if event < count:
                merged.append((event, turn))
            else:
                merged[-1] = (merged[-1][0], merged[-1][1] and turn)
        kept = [
            step
            for before, step in zip(merged[-1:] + merged[:-1], merged, strict=True)
            if not (before[1] and step[1])
        ]
        return kept or merged
