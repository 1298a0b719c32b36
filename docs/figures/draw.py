"""Redraw the figures of the founding papers from the registry: ``make figures``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import debubble as db

HERE = Path(__file__).parent
PAPER = {"width": 7.0, "numbers_from": 1, "memory": False, "notes": False}


@dataclass(frozen=True)
class Example:
    """A schedule in the setting of a paper, and the figure of that paper."""

    schedule: str
    source: str
    costs: db.Costs
    size: dict[str, Any] = field(default_factory=dict)
    look: dict[str, Any] = field(default_factory=dict)


BACKWARD_TWICE = db.Costs(F=1, B=2)
EQUAL = db.Costs(F=1, I=1, W=1)
OVERLAPPED = db.Costs(F=1, I=1, W=1, O=2.5)

EXAMPLES = (
    Example(
        "gpipe",
        "Huang et al., GPipe, arXiv 1811.06965, Figure 2(c): 4 partitions, 4 microbatches",
        BACKWARD_TWICE, {"ranks": 4, "microbatches": 4},
    ),
    Example(
        "1f1b",
        "Narayanan et al., Megatron-LM, arXiv 2104.04473, Figure 4 (top): 4 ranks, 8 microbatches",
        BACKWARD_TWICE, {"ranks": 4, "microbatches": 8},
    ),
    Example(
        "interleaved-1f1b",
        "Narayanan et al., Megatron-LM, arXiv 2104.04473, Figure 4 (bottom): 2 chunks per rank",
        db.Costs.per_rank(F=1, B=2), {"ranks": 4, "microbatches": 8, "chunks": 2},
    ),
    Example(
        "pipedream-2bw",
        "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, arXiv 2006.09503, "
        "the double-buffered updates of its timeline: no flush between batches of 4",
        BACKWARD_TWICE, {"ranks": 4, "microbatches": 4, "iterations": 3},
    ),
    Example(
        "zb-h1",
        "Qi et al., Zero Bubble, arXiv 2401.10241, Figure 3 (top): ZB-H1, 4 ranks, 8 microbatches",
        EQUAL, {"ranks": 4, "microbatches": 8},
    ),
    Example(
        "zb-h2",
        "Qi et al., Zero Bubble, arXiv 2401.10241, Figure 3 (bottom): ZB-H2",
        EQUAL, {"ranks": 4, "microbatches": 8},
    ),
    Example(
        "zb-v",
        "Qi et al., Zero Bubble, arXiv 2401.10241, the section on ZB-V: 4 ranks, 8 microbatches",
        EQUAL, {"ranks": 4, "microbatches": 8},
    ),
    Example(
        "dualpipe",
        "DeepSeek-AI, DeepSeek-V3, arXiv 2412.19437, Figure 5: 8 ranks, 20 microbatches",
        OVERLAPPED, {"ranks": 8, "microbatches": 20}, {"width": 11},
    ),
    Example(
        "seq1f1b-interleaved",
        "Sun et al., Seq1F1B, arXiv 2406.03488, its interleaved variant: 4 ranks, 4 microbatches "
        "of 4 slices",
        db.Costs.per_rank(F=4, B=8), {"ranks": 4, "microbatches": 4}, {"width": 11},
    ),
    Example(
        "stp",
        "STP, arXiv 2510.27257, its braided schedule: 4 ranks, 12 microbatches",
        EQUAL, {"ranks": 4, "microbatches": 12}, {"width": 11},
    ),
    Example(
        "chimera",
        "Li and Hoefler, Chimera, arXiv 2107.06925, its bidirectional pipelines: 4 ranks, "
        "4 microbatches",
        BACKWARD_TWICE, {"ranks": 4, "microbatches": 4},
    ),
)  # fmt: skip


def main() -> None:
    """Write every figure and the page that lists them."""
    lines = [
        "# Figures of the founding papers",
        "",
        "Drawn from the registry by `make figures`. Microbatches count from 1, as in the papers.",
        "",
    ]
    for example in EXAMPLES:
        schedule = db.make(example.schedule, costs=example.costs, **example.size)
        timeline = db.simulate(schedule, example.costs)
        name = f"{example.schedule}.svg"
        timeline.save(HERE / name, **PAPER | example.look)
        lines += [f"## {example.schedule}", "", f"{example.source}.", "", f"![{name}]({name})", ""]
    (HERE / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
