"""Search for the policy under which the list scheduler does best, in one call of machine code."""

from __future__ import annotations

from debubble.engine.jit import Array, helper, kernel
from debubble.listing.kernel import read_policy, reset, run_pass, times_of
from debubble.listing.pass_state import (
    ATTEMPTS,
    KEYS,
    MOST_CHANGES,
    MOST_DRAWS,
    NEVER,
    PARAMETERS,
    PARENTS,
    Draws,
    ListProblem,
    PassProgress,
    SearchTerms,
    TriedPolicies,
)

ROUNDED = 1e9
"""Largest share that is rounded: parts of it are still whole numbers of 64 bits."""


@kernel(writes=("tried.policies", "tried.keys", "tried.times", "order"), allocates=False)
def try_policies(
    given: int, problem: ListProblem, terms: SearchTerms, draws: Draws, progress: PassProgress,
    tried: TriedPolicies, order: Array,
) -> tuple[int, int]:  # fmt: skip
    """Try the first `given` policies, then variations of the best of all.

    Returns how many policies were tried, and how many actions were placed. The policies stand in
    `tried`, to which others are added. `order` keeps the packed actions of the last pass.
    """
    size = 3 * len(problem.rank_of) * problem.microbatches
    give_up = NEVER
    count = used = placed = 0
    end = min(given, terms.batch)
    while count < end:
        end = min(end, count + max(1, int((terms.budget - placed) / size)))
        is_met = False
        for which in range(count, end):
            rules = read_policy(tried.policies, which, problem)
            reset(rules, problem, progress)
            done, fullest, hopeless = run_pass(
                rules, problem, give_up, terms.by_stage_time, progress, order
            )
            placed += done
            makespan = stage_time = NEVER
            if not hopeless:
                makespan, stage_time = times_of(problem, progress)
            time, other = makespan, stage_time
            if terms.by_stage_time:
                time, other = stage_time, makespan
            key_into(tried.keys, which, time, other, fullest, terms.scale)
            tried.times[which] = time
            give_up = min(give_up, (1.0 + terms.tolerance) * time)
            is_met = is_met or time <= terms.bound
        count = end
        wanted = min(terms.batch, int((terms.budget - placed) / size), terms.most - count)
        if is_met or wanted < 1:
            break
        if count < given:
            end = min(given, count + wanted)
        else:
            end, used = vary(count, wanted, used, draws, tried)
    return count, placed


@helper
def key_into(
    keys: Array, which: int, objective: float, other: float, share: float, scale: float
) -> None:
    """Write a key, to be minimized: the objective, the other time, the largest share of a limit.

    Times are rounded, so that rounding errors do not decide.
    """
    begin = KEYS * which
    keys[begin] = rounded(objective / scale, 1e9)
    keys[begin + 1] = rounded(other / scale, 1e9)
    keys[begin + 2] = rounded(share, 1e6)


@helper
def rounded(share: float, parts: float) -> float:
    """Return a share, rounded to a number of parts of one, unless it is very large."""
    if share > ROUNDED:
        return share
    return int(share * parts + 0.5) / parts


@helper
def comes_after(keys: Array, which: int, other: int) -> bool:
    """Return whether a policy ranks after another one; of equal ones the first comes first."""
    a, b = KEYS * which, KEYS * other
    for i in range(KEYS):
        if keys[a + i] != keys[b + i]:
            return keys[a + i] > keys[b + i]  # type: ignore[no-any-return]
    return which > other


@helper
def find_parents(count: int, tried: TriedPolicies) -> int:
    """Find the best of the first `count` policies, the best first; return how many there are."""
    keys, parents = tried.keys, tried.parents
    number = min(count, PARENTS)
    for k in range(number):
        best = -1
        for i in range(count):
            if k > 0 and not comes_after(keys, i, parents[k - 1]):
                continue
            if best < 0 or comes_after(keys, best, i):
                best = i
        parents[k] = best
    return number


@helper
def vary(count: int, wanted: int, used: int, draws: Draws, tried: TriedPolicies) -> tuple[int, int]:
    """Add new policies, each one to three whole or half steps away from a good one.

    Returns how many there are then, and how many random numbers are used.
    """
    policies, random, levels, begins = tried.policies, draws.random, draws.levels, draws.begins
    parents = find_parents(count, tried)
    end = count
    for _ in range(ATTEMPTS * wanted):
        if end == count + wanted or used + MOST_DRAWS > len(random):
            break
        begin = PARAMETERS * end
        parent = PARAMETERS * tried.parents[int(random[used] * parents)]
        for i in range(PARAMETERS):
            policies[begin + i] = policies[parent + i]
        changes = 1 + int(random[used + 1] * MOST_CHANGES)
        used += 2
        for _ in range(changes):
            which = int(random[used] * PARAMETERS)
            step = int(random[used + 1] * 4) - 2
            first, last = begins[which], begins[which + 1] - 1
            place = first
            while place <= last and levels[place] < policies[begin + which]:
                place += 1
            # Two or one steps down, one or two up.
            place += step if step < 0 else step + 1
            value = levels[min(max(place, first), last)]
            if random[used + 2] < 0.5:
                policies[begin + which] = value
            else:
                policies[begin + which] = (policies[begin + which] + value) / 2
            used += 3
        if is_new(end, policies):
            end += 1
    return end, used


@helper
def is_new(end: int, policies: Array) -> bool:
    """Return whether no earlier policy equals that at `end`."""
    begin = PARAMETERS * end
    for other in range(end):
        same = True
        for i in range(PARAMETERS):
            if policies[PARAMETERS * other + i] != policies[begin + i]:
                same = False
                break
        if same:
            return False
    return True
