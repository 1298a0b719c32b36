"""What is not as it should be: causes found in the times of actions, one after the other.

Each cause is looked for in what those before it leave over: pauses of hosts, lengths of sequences,
a slow data-parallel copy, a slow worker (one rank of one copy), a heavy stage, single actions that
take far longer than others of their kind. So a slow worker is not a heavy stage as well, and long
sequences are no jitter. What is compared is always of the same kind: a worker with the workers of
other copies that have its stage, in the same step; a stage with the mean of all stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import Kind
from debubble.diagnosis.observed import PAUSES
from debubble.diagnosis.run import Run, Times

LEAST = 1.03
"""A stage, worker or copy is slow from so many times the time of the others on."""

SURE = 4.0
"""Standard errors by which a mean has to differ."""

VARIES, TOGETHER = 0.1, 0.9
"""Coefficient of variation, and Pearson's r of forwards and backwards, from which sequences
differ in length: all times of a step have some noise in common, so that r alone says little."""

OUTLIER, SIGMAS = 1.3, 6.0
"""An action is an outlier from so many times its usual time, and so many deviations, on."""

FEW_OUTLIERS = 5
"""Outliers that are needed to say of which kind they are: five forwards are no chance."""

UNSTEADY = 0.05
"""Coefficient of variation from which a worker's times are unsteady."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One cause of lost time in actions.

    Parameters
    ----------
    cause
        One of :data:`debubble.diagnosis.account.CAUSES`.
    excess
        What it adds to every action, shape ``(rows, actions)``; negative where an action is shorter
        than it would be.
    late
        What it adds to the time that the host is late with an action, in the same way.
    where
        Numbers of the ``"stage"``, ``"rank"``, ``"copy"`` it is in, as far as it is in one.
    size
        How many times as long its actions take; NaN where that says nothing.
    by_kind
        The same for every kind.
    """

    cause: str
    excess: Times
    late: Times
    where: dict[str, int] = field(default_factory=dict)
    size: float = math.nan
    by_kind: dict[str, float] = field(default_factory=dict)


def find_faults(run: Run, times: Times, gaps: Times) -> list[Fault]:
    """Causes of lost time in the actions of a run, in the order in which they are looked for.

    Parameters
    ----------
    run
        The run.
    times, gaps
        Time of every action, and time that the host was late with it, shape ``(rows, actions)``.
    """
    return list(_Finder(run, times, gaps).faults())


@dataclass(eq=False)
class _Finder:
    """Times of actions, less what is explained."""

    run: Run
    times: Times
    gaps: Times

    def faults(self) -> Iterator[Fault]:
        """Look for one cause after the other."""
        for look in (
            self._pauses, self._launch_gaps, self._lengths, self._slow_copies, self._slow_workers,
            self._slow_stages, self._outliers, self._jitter,
        ):  # fmt: skip
            for fault in look():
                self.times = self.times - fault.excess
                self.gaps = self.gaps - fault.late
                yield fault

    def _fault(
        self, cause: str, excess: Times, where: dict[str, int], size: float = math.nan
    ) -> Fault:
        """A fault inside actions."""
        return Fault(cause, excess, np.zeros_like(excess), where, float(size))

    def _pauses(self) -> Iterator[Fault]:
        """Times in which a host is known to have stood still."""
        run = self.run
        for cause, name in enumerate(PAUSES):
            inside = np.minimum(self._stood(cause, run.start, run.end), self.times)
            before = np.minimum(self._stood(cause, run.start - self.gaps, run.start), self.gaps)
            if inside.any() or before.any():
                yield Fault(name, inside, before, self._only_rank(inside + before))

    def _stood(self, cause: int, start: Times, end: Times) -> Times:
        """How long hosts stood still for a cause between two times of every action."""
        run, pauses = self.run, self.run.pauses
        stood = np.zeros_like(self.times)
        for at in np.flatnonzero(pauses.cause == cause).tolist():
            rows = np.flatnonzero(run.copy == pauses.copy[at])
            cells = np.ix_(rows, np.flatnonzero(run.rank == pauses.rank[at]))
            length = np.minimum(end[cells], pauses.end[at])
            length = length - np.maximum(start[cells], pauses.start[at])
            stood[cells] += np.nan_to_num(np.maximum(length, 0.0))
        return stood

    def _launch_gaps(self) -> Iterator[Fault]:
        """Times inside actions in which the device did nothing, and hosts that are late."""
        idle = np.clip(self.run.duration - self.run.busy, 0.0, self.times)
        idle = np.where(np.isnan(idle), 0.0, idle)
        if idle.any() or self.gaps.any():
            yield Fault("launch-gap", idle, self.gaps, self._only_rank(idle + self.gaps))

    def _lengths(self) -> Iterator[Fault]:
        """Microbatches that take longer than others on all of their stages."""
        length = self._relative_lengths()
        if length is None:
            return
        usual = self.times / length
        yield self._fault("sequence-length", self.times - usual, {}, length.max())

    def _relative_lengths(self) -> Times | None:
        """How much longer than the mean of its step every action is for the length of its sequence.

        Of every kind apart: attention makes backwards depend more on it than forwards. None where
        microbatches are alike.
        """
        run, times = self.run, self.times
        units = int(run.unit.max()) + 1
        if units < 2:
            return None
        forward = run.counted & (run.cls == Kind.F)
        backward = run.counted & np.isin(run.cls, (Kind.B, Kind.I))
        shares, spreads = [], []
        for rank in range(run.schedule.ranks):
            mine = run.rank == rank
            one = self._by_unit(forward & mine, units)
            two = self._by_unit(backward & mine, units)
            if one is None or two is None:
                continue
            for copy in np.unique(run.copy).tolist():
                here = run.copy == copy
                f, b = one[here].ravel(), two[here].ravel()
                spreads.append(min(f.std(), b.std()))
                shares.append(np.corrcoef(f, b)[0, 1] if f.std() and b.std() else 0.0)
        if not shares or np.median(shares) < TOGETHER or np.median(spreads) < VARIES:
            return None
        relative = times / self._level()
        found = np.ones_like(times)
        _, place = run.step_of
        for cls in np.unique(run.cls).tolist():
            length = np.ones((run.rows, units))
            for unit in range(units):
                mine = np.flatnonzero(run.counted & (run.unit == unit) & (run.cls == cls))
                if len(mine):
                    length[:, unit] = np.median(relative[:, mine], axis=1)
            for step in range(int(place.max()) + 1):
                length[place == step] /= length[place == step].mean()
            alike = np.flatnonzero(run.cls == cls)
            found[:, alike] = length[:, run.unit[alike]]
        return np.maximum(found, 1e-9)

    def _by_unit(self, columns: NDArray[np.bool_], units: int) -> Times | None:
        """Time of every microbatch in these columns against the mean of its row."""
        here = np.flatnonzero(columns)
        if len(here) < units:
            return None
        total = np.zeros((self.run.rows, units))
        np.add.at(total.T, self.run.unit[here], self.times[:, here].T)
        mean = total.mean(axis=1, keepdims=True)
        return np.asarray(total / np.where(mean > 0, mean, 1.0))

    def _level(self) -> Times:
        """Mean time of every (copy, stage, class), for every action."""
        run = self.run
        level = np.ones_like(self.times)
        for copy in np.unique(run.copy).tolist():
            rows = np.flatnonzero(run.copy == copy)
            for columns in self._cells():
                level[np.ix_(rows, columns)] = self.times[np.ix_(rows, columns)].mean()
        return np.where(level > 0, level, 1.0)

    def _cells(self) -> Iterator[NDArray[np.int64]]:
        """The actions of every (stage, class)."""
        run = self.run
        keys = run.stage * 64 + run.cls
        for key in np.unique(keys).tolist():
            yield np.flatnonzero(keys == key)

    def _medians(self) -> Times:
        """Median of every (stage, class) in each row, for every action."""
        found = np.zeros_like(self.times)
        for columns in self._cells():
            found[:, columns] = np.median(self.times[:, columns], axis=1, keepdims=True)
        return found

    def _work(self) -> Times:
        """Time that every rank would compute at its medians, shape ``(rows, ranks)``."""
        run = self.run
        usual = np.where(run.counted, self._medians(), 0.0)
        starts = np.asarray(run.schedule.offsets[:-1])
        full = np.concatenate([usual, np.zeros((run.rows, 1))], axis=1)
        return np.asarray(np.add.reduceat(full, starts, axis=1))

    def _against_copies(self) -> Times | None:
        """Work of every worker over that of the others with its stages, shape ``(rows, ranks)``."""
        run = self.run
        copies = int(run.copy.max()) + 1
        if copies < 2:
            return None
        work = self._work()
        steps, place = run.step_of
        table = np.full((len(steps), copies, run.schedule.ranks), np.nan)
        table[place, run.copy] = work
        found = np.ones_like(work)
        for copy in range(copies):
            others = np.delete(table, copy, axis=1)
            there = ~np.isnan(others).all(axis=(1, 2))
            peer = np.full((len(steps), run.schedule.ranks), np.nan)
            peer[there] = np.nanmedian(others[there], axis=1)
            here = run.copy == copy
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = work[here] / peer[place[here]]
            found[here] = np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
        return found

    def _slow_copies(self) -> Iterator[Fault]:
        """Copies of which all ranks are slower than those of the others."""
        run = self.run
        ratio = self._against_copies()
        if ratio is None or run.schedule.ranks < 2:
            return
        for copy in np.unique(run.copy).tolist():
            here = run.copy == copy
            if all(_is_slow(ratio[here, rank]) for rank in range(run.schedule.ranks)):
                factor = np.maximum(np.median(ratio[here], axis=1), 1.0)
                excess = np.zeros_like(self.times)
                excess[here] = self.times[here] * (1 - 1 / factor)[:, None]
                yield self._fault("slow-copy", excess, {"copy": copy}, factor.mean())

    def _slow_workers(self) -> Iterator[Fault]:
        """Single ranks of a copy that are slower than the same rank of others."""
        run = self.run
        ratio = self._against_copies()
        if ratio is None:
            return
        for copy in np.unique(run.copy).tolist():
            here = run.copy == copy
            for rank in range(run.schedule.ranks):
                if not _is_slow(ratio[here, rank]):
                    continue
                columns = np.flatnonzero(run.rank == rank)
                factor = np.maximum(ratio[here, rank], 1.0)
                cells = np.ix_(np.flatnonzero(here), columns)
                excess = np.zeros_like(self.times)
                excess[cells] = self.times[cells] * (1 - 1 / factor)[:, None]
                where = {"rank": rank, "copy": copy}
                if run.schedule.chunks == 1:
                    where["stage"] = int(run.stage[columns[0]])
                yield self._fault("slow-worker", excess, where, factor.mean())

    def _slow_stages(self) -> Iterator[Fault]:
        """Stages that take longer than the mean of all; ranks where all of their stages do."""
        run = self.run
        medians = self._medians()
        ideal = np.zeros_like(self.times)
        for cls in np.unique(run.cls).tolist():
            columns = np.flatnonzero((run.cls == cls) & run.counted)
            alike = np.flatnonzero(run.cls == cls)
            ideal[:, alike] = medians[:, columns].mean(axis=1, keepdims=True)
        faults = []
        for stage in range(run.schedule.stages):
            mine = np.flatnonzero((run.stage == stage) & run.counted)
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = medians[:, mine].sum(axis=1) / ideal[:, mine].sum(axis=1)
            if not _is_slow(ratio):
                continue
            all_mine = np.flatnonzero(run.stage == stage)
            share = 1 - ideal[:, all_mine] / np.maximum(medians[:, all_mine], 1e-30)
            excess = np.zeros_like(self.times)
            excess[:, all_mine] = self.times[:, all_mine] * share
            by_kind = {}
            for kind in np.unique(run.kind[mine]).tolist():
                at = mine[run.kind[mine] == kind]
                by_kind[Kind(kind).name] = float((medians[:, at] / ideal[:, at]).mean())
            where = {"stage": stage, "rank": int(run.rank[mine[0]])}
            fault = self._fault("slow-stage", excess, where, ratio.mean())
            faults.append(replace(fault, by_kind=by_kind))
        yield from self._whole_ranks(faults)

    def _whole_ranks(self, faults: list[Fault]) -> list[Fault]:
        """The same with one slow worker in place of all stages of a rank, where it has several."""
        run = self.run
        if int(run.copy.max()) or run.schedule.chunks < 2 or run.schedule.placement.copies > 1:
            return faults
        found = []
        for rank in range(run.schedule.ranks):
            mine = [fault for fault in faults if fault.where["rank"] == rank]
            if len(mine) == len(run.schedule.placement.stages_on(rank)) > 1:
                excess = np.sum([fault.excess for fault in mine], axis=0)
                size = float(np.mean([fault.size for fault in mine]))
                found.append(self._fault("slow-worker", excess, {"rank": rank, "copy": 0}, size))
            else:
                found += mine
        return found

    def _expected(self) -> Times:
        """Median of every (row, stage, class), drawn towards that of all rows, for every action."""
        run = self.run
        found = self._medians()
        for columns in self._cells():
            if len(columns) < FEW_OUTLIERS:
                # Of few microbatches a median may itself be an outlier.
                found[:, columns] = np.median(self.times[:, columns])
        return np.where(run.counted, found, np.maximum(found, 1e-30))

    def _outliers(self) -> Iterator[Fault]:
        """Single actions that take far longer than others: collection of garbage, if forwards."""
        run = self.run
        expected = np.maximum(self._expected(), 1e-30)
        ratio = self.times / expected
        counted = ratio[:, run.counted]
        spread = 1.4826 * float(np.median(np.abs(counted - 1)))
        far = (ratio > max(OUTLIER, 1 + SIGMAS * spread)) & run.counted & run.known
        if np.count_nonzero(far) < FEW_OUTLIERS:
            return
        excess = np.where(far, self.times - expected, 0.0)
        forwards = np.count_nonzero(far & (run.kind == Kind.F)) / np.count_nonzero(far)
        cause = "garbage-collection" if forwards >= TOGETHER else "jitter"
        yield self._fault(cause, excess, self._only_rank(excess))

    def _jitter(self) -> Iterator[Fault]:
        """Workers whose times are unsteady, and all of them where all are."""
        run = self.run
        expected = np.maximum(self._expected(), 1e-30)
        apart = self.times - expected
        spread = np.zeros(run.schedule.ranks)
        for rank in range(run.schedule.ranks):
            mine = np.flatnonzero((run.rank == rank) & run.counted)
            spread[rank] = float((apart[:, mine] / expected[:, mine]).std())
        usual = float(np.median(spread))
        for rank in np.flatnonzero(spread > max(UNSTEADY, 2 * usual)).tolist():
            mine = run.rank == rank
            yield self._fault(
                "jitter", np.where(mine, apart, 0.0), {"rank": rank}, 1 + spread[rank]
            )
        if usual > UNSTEADY:
            rest = np.isin(run.rank, np.flatnonzero(spread <= max(UNSTEADY, 2 * usual)))
            yield self._fault("jitter", np.where(rest, apart, 0.0), {}, 1 + usual)

    def _only_rank(self, excess: Times) -> dict[str, int]:
        """The rank that has most of it, if one has."""
        run = self.run
        total = np.bincount(run.rank, np.where(run.counted, excess, 0.0).sum(axis=0),
                            run.schedule.ranks)  # fmt: skip
        most = int(total.argmax())
        lone = run.schedule.ranks > 1 and total[most] > MOST * total.sum()
        return {"rank": most} if lone else {}


MOST = 0.7
"""Share of a loss from which it is one rank's."""


def _is_slow(ratio: Times) -> bool:
    """Whether ratios, one for each step, are above 1 by more than chance, or far above in some."""
    mean = float(ratio.mean())
    error = float(ratio.std() / np.sqrt(len(ratio)))
    return mean > LEAST and (mean - 1 > SURE * error or float((ratio > FAR).mean()) > SOME)


FAR, SOME = 1.1, 0.2
"""Share of the steps that have to be so many times as long where others are not."""
