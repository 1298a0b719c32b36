"""A file with every send and receive takes the time of the order that it was written for."""

from __future__ import annotations

from pathlib import Path

import debubble as db
from debubble.core.errors import DebubbleError
from debubble.engine.modes import P2P_MODES, P2PMode
from debubble.interchange.files import load, text_of
from debubble.schedules.registry import Entry
from tests.pairs import each_family_and
from tests.small import smallest

COSTS = db.Costs(F=1, I=1.25, W=0.5, p2p=0.75)


@each_family_and("p2p_mode", P2P_MODES)
def test_a_file_with_transfers_takes_the_same_time(
    entry: Entry, p2p_mode: P2PMode, tmp_path: Path
) -> None:
    schedule, path = smallest(entry), tmp_path / "order.csv"
    try:
        text = text_of(schedule, "torch-csv-comms", p2p_mode=p2p_mode)
    except DebubbleError as error:
        assert "a JSON schedule file can say it" in str(error)  # noqa: PT017 - some cannot
        return
    path.write_text(text)
    found, told = (db.simulate(order, COSTS, p2p_mode) for order in (load(path), schedule))
    assert (found.makespan, found.peak_activation.tolist()) == (
        told.makespan, told.peak_activation.tolist(),
    )  # fmt: skip
