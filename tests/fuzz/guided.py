"""One reader under atheris, which follows the code that inputs reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

import atheris

FOLLOWED = [
    "debubble.interchange", "debubble.cli", "debubble.planner", "debubble.diagnosis.readers",
    "debubble.diagnosis.changes", "debubble.playground", "debubble.core.actions",
    "debubble.core.schedule_fields", "debubble.core.cost_fields", "debubble.lowering.chain",
    "debubble.engine.jitter", "json", "csv", "tomllib",
]  # fmt: skip
"""Packages of readers; kernels are compiled, and nothing can be added to their code."""


def main() -> None:
    name, board, kept, seed, seconds, count = sys.argv[1:]
    with atheris.instrument_imports(include=FOLLOWED):
        import debubble.cli.app
        import debubble.diagnosis.readers.folder
        import debubble.interchange.files
        import debubble.interchange.read_trace
        import debubble.planner.constraints
        import debubble.planner.cost.calibration_files
        import debubble.playground.app
        import debubble.playground.traces
        import debubble.sweeps  # noqa: F401
    from tests.fuzz.readers import at_home
    from tests.fuzz.run_readers import Board, Watch

    home = Path(kept).resolve()
    paths = Path(board).resolve()
    at_home()
    watch = Watch(name, Board(paths), home)
    known = watch.reader.seeds()
    corpus = Path("corpus")
    corpus.mkdir()
    for number, content in enumerate(known):
        (corpus / str(number)).write_bytes(content)
        watch.give(content)
    watch.limit()
    random = Random(f"{name} {seed}")

    def mutate(content: bytes, most: int, number: int) -> bytes:
        random.seed(number)
        if random.random() < 0.4:
            return atheris.Mutate(content, most)
        return watch.reader.mutate(random, content, known)[:most]

    longest = max(4096, 2 * max(map(len, known)))
    flags = [f"-max_total_time={seconds}", f"-max_len={longest}", "-timeout=600",
             f"-seed={1 + int(seed) % (1 << 31)}", "-print_final_stats=0"]  # fmt: skip
    if int(count):
        flags.append(f"-runs={count}")
    atheris.Setup([sys.argv[0], *flags, str(corpus)], watch.give, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_DISABLE_PERFORMANCE_WARNINGS", "1")
    main()
