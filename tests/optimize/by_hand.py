"""Cuts of layers by hand: what stages take, and the fastest order, without engine and optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

KEEP, RECOMPUTE, OFFLOAD = 0, 1, 2


def all_cuts(
    layers: int, stages: int, embedding: bool = False, head: bool = False
) -> list[tuple[int, ...]]:
    """Every cut; the first stage may be an embedding alone, the last a head alone."""
    cuts = (cut for cut in product(range(layers + 1), repeat=stages) if sum(cut) == layers)
    inner = range(embedding, stages - head)
    return [cut for cut in cuts if all(cut[stage] for stage in inner)]


@dataclass(frozen=True)
class Model:
    """A model of a few layers.

    Parameters
    ----------
    layers
        F, I, W, B, R, activation, kept_for_weight, recompute_kept and offload_share of each.
    embedding, head
        The same of what the first and the last stage do beside, shares excepted.
    homes
        The rank of every stage.
    microbatches, limit, p2p, overhead
        As for the optimizer; transfers take time between ranks and occupy none.
    torch
        Whether the first stage's W is its whole backward, and its I nothing.
    backward
        split or fused.
    """

    layers: Sequence[Mapping[str, float]]
    embedding: Mapping[str, float]
    head: Mapping[str, float]
    homes: tuple[int, ...]
    microbatches: int
    limit: float
    p2p: float
    overhead: float
    torch: bool
    backward: str

    def stages(self, cut: Sequence[int], choice: Sequence[int]) -> list[dict[str, float]]:
        """What the stages of a cut take and hold."""
        found, begin = [], 0
        for stage, count in enumerate(cut):
            parts: list[Mapping[str, float]] = list(self.layers[begin : begin + count])
            begin += count
            shares = ("kept_for_weight", "recompute_kept", "offload_share")
            for end, part in ((0, self.embedding), (len(cut) - 1, self.head)):
                if stage == end and part:
                    near = self.layers[0 if part is self.embedding else -1]
                    parts.append({"R": part["F"], **part} | {name: near[name] for name in shares})
            time = {kind: sum(part[kind] for part in parts) for kind in "FIWBR"}
            if self.torch and stage == 0:
                time |= {"I": 0.0, "W": time["B"]}
            held = sum(part["activation"] for part in parts)
            kept = sum(part["activation"] * part["kept_for_weight"] for part in parts)
            stored = held
            if choice[stage] & RECOMPUTE:
                stored = sum(part["activation"] * part["recompute_kept"] for part in parts)
            if choice[stage] & OFFLOAD:
                stored -= sum(part["activation"] * part["offload_share"] for part in parts)
            again = time["R"] + self.overhead if choice[stage] & RECOMPUTE else 0.0
            if self.torch and stage == 0:
                kept = held
            found.append(
                {kind: time[kind] + self.overhead for kind in "FIWB"}
                | {"R": again, "held": held, "kept": kept, "stored": stored}
            )
        return found

    def fastest(self, cut: Sequence[int], choice: Sequence[int]) -> float:
        """The smallest makespan of any order within memory; infinite where there is none.

        Copies to the host take no time.
        """
        stages = self.stages(cut, choice)
        kinds = "FB" if self.backward == "fused" else "FIW"
        ways = [
            [
                (order, sum(stages[s][kind] for kind, s, _ in order))
                for order in orders(
                    kinds, tuple(s for s in range(len(cut)) if self.homes[s] == r),
                    tuple(s for s, how in enumerate(choice) if how & RECOMPUTE), self.microbatches
                )
                if self._fits(order, stages)
            ]
            for r in sorted(set(self.homes))
        ]  # fmt: skip
        best = INFINITE
        for chosen in product(*ways):
            best = min(best, self._makespan(chosen, stages, best))
        return best

    def _fits(self, order: Order, stages: Sequence[Mapping[str, float]]) -> bool:
        now = peak = 0.0
        redone = {(s, b) for kind, s, b in order if kind == "R"}
        for kind, s, b in order:
            stage = stages[s]
            if kind == "F":
                now += stage["stored"]
            elif kind == "R" or (kind in "IB" and (s, b) not in redone):
                now += stage["held"] - stage["stored"]
            peak = max(peak, now)
            if kind not in "FR":
                now -= {"I": stage["held"] - stage["kept"], "W": stage["kept"]}.get(
                    kind, stage["held"]
                )
        return peak <= self.limit * (1 + 1e-9)

    def _makespan(
        self,
        chosen: Sequence[tuple[Order, float]],
        stages: Sequence[Mapping[str, float]],
        known: float,
    ) -> float:
        """Time of the orders of all ranks, each with the time of its actions.

        Infinite where ranks wait for each other or are no faster than is known.
        """
        end: dict[tuple[str, int, int], float] = {}
        last = len(stages) - 1
        at, free = [0] * len(chosen), [0.0] * len(chosen)
        after = [time for _, time in chosen]
        left = sum(len(order) for order, _ in chosen)
        while left:
            before = left
            for rank, (order, _) in enumerate(chosen):
                while at[rank] < len(order):
                    kind, s, b = order[at[rank]]
                    need, ready = None, 0.0
                    if kind == "W":
                        need = ("I", s, b)
                    elif kind != "R" and 0 <= (other := s - 1 if kind == "F" else s + 1) <= last:
                        need = (kind, other, b)
                    if need is not None:
                        if need not in end:
                            break
                        ready = end[need] + self.p2p * (self.homes[need[1]] != self.homes[s])
                    end[kind, s, b] = free[rank] = max(free[rank], ready) + stages[s][kind]
                    after[rank] -= stages[s][kind]
                    if free[rank] + after[rank] >= known:
                        return INFINITE
                    at[rank] += 1
                    left -= 1
            if left == before:
                return INFINITE
        return max(free)


Order = tuple[tuple[str, int, int], ...]
INFINITE = float("inf")


@cache
def orders(
    kinds: str, stages: tuple[int, ...], redone: tuple[int, ...], microbatches: int
) -> tuple[Order, ...]:
    """Every order of a rank's actions in which each kind of a stage takes microbatches in turn.

    Some stages are `redone` between their forward and their backward.
    """
    again = [stage for stage in stages if stage in redone]
    actions = [*product(kinds, stages, range(microbatches)),
               *product("R", again, range(microbatches))]  # fmt: skip

    def ready(action: tuple[str, int, int], done: frozenset[tuple[str, int, int]]) -> bool:
        kind, s, b = action
        needs = [(kind, s, b - 1)] if b else []
        needs += [("F", one, b) for one in stages if (one < s if kind == "F" else one >= s)]
        if kind == "R":
            needs = [*needs[: b > 0], ("F", s, b)]
        elif kind == "W":
            needs = [*needs, ("I", s, b)]
        elif kind != "F":
            needs += [(kind, one, b) for one in stages if one > s]
            needs += [("R", s, b)] if s in again else []
        return done.issuperset(needs)

    def extend(order: Order) -> Iterator[Order]:
        if len(order) == len(actions):
            yield order
        done = frozenset(order)
        for action in actions:
            if action not in done and ready(action, done):
                yield from extend((*order, action))

    return tuple(extend(()))


def rounded(values: Mapping[str, Any]) -> dict[str, float]:
    """A layer's costs by the rules for what is not given: B is I + W, R is F."""
    found = {"activation": 0.0, "kept_for_weight": 1.0, "recompute_kept": 0.0,
             "offload_share": 1.0, **values}  # fmt: skip
    found.setdefault("B", found["I"] + found["W"])
    found.setdefault("R", found["F"])
    return found
