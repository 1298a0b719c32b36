"""A schedule of one's own: ``debubble simulate examples/schedule.py:order -p 4 -m 8``.

A function takes ranks and microbatches by keyword, and yields the program of every rank: actions
in the order in which the rank runs them, as ``<stage><kind><microbatch>``.
"""

from __future__ import annotations

from collections.abc import Iterator


def order(*, ranks: int, microbatches: int, ahead: int = 1) -> Iterator[list[str]]:
    """1F1B with `ahead` more forwards in flight, which hides latency (``--option ahead=2``)."""
    for rank in range(ranks):
        warm_up = min(ranks - rank + ahead, microbatches)
        program = [f"{rank}F{number}" for number in range(warm_up)]
        for number in range(microbatches):
            program.append(f"{rank}B{number}")
            if warm_up + number < microbatches:
                program.append(f"{rank}F{warm_up + number}")
        yield program
