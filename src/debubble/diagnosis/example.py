"""Small trace of a real run, which comes with the package."""

from __future__ import annotations

from pathlib import Path


def example_trace() -> Path:
    """Return the path of a trace in which stage 2 takes 1.5 times as long as the others.

    ``debubble run 1f1b -p 4 -m 8 --steps 3 --sleep 40 --times F=1/1/1.5/1,I=1/1/1.5/1,W=1/1/1.5/1
    --trace example.json.gz`` recorded it on the CPU; the predicted times and the name of the host
    were taken out.
    """
    return Path(__file__).with_name("example.json.gz")
