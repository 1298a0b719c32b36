"""The browser's timeline: bytes in the file, time to open it, and milliseconds per frame.

Frames are drawn one after the other by a script that zooms and pans at many scales, in a headless
Chromium on the CPU; each one is timed on its own. Once with the layers a page begins with, bubbles
and memory, and once with transfers and the critical path, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import debubble as db
from debubble.view.files import save
from debubble.view.page import script
from debubble.view.timeline_data import encode

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser import launch

CASES = [
    # name, ranks, microbatches, chunks
    ("1f1b", 8, 64, None),
    ("dualpipe-v", 8, 200, None),
    ("zb-h1", 16, 2_000, None),
    ("1f1b", 16, 31_250, None),
    ("interleaved-1f1b", 64, 2_048, 4),
]
COSTS = db.Costs.per_rank(F=10, I=11, W=7, O=25, p2p=0.37)

FRAMES = """(layers) => {
  const timeline = document.querySelector("debubble-timeline"), { view } = timeline, times = [];
  for (const name of layers) if (!timeline.layers[name]) timeline.toggle(name);
  const frame = (move) => {
    move();
    const begin = performance.now();
    timeline.draw();
    times.push(performance.now() - begin);
  };
  for (const share of [1, 0.5, 0.2, 0.05, 0.02, 0.005, 0.002, 0.0005]) {
    const span = share * view.total;
    view.show(0.4 * view.total, 0.4 * view.total + span);
    for (let k = 0; k < 25; k++) frame(() => view.pan(k < 12 ? 0.03 : -0.03));
  }
  view.fit();
  for (let k = 0; k < 40; k++) frame(() => view.zoom(0.8, 0.37));
  for (let k = 0; k < 40; k++) frame(() => view.zoom(1.25, 0.37));
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.floor(share * (times.length - 1))];
  return { low: at(0.05), median: at(0.5), high: at(0.95), count: times.length };
}"""


def main() -> None:
    print(f"component: {len(script()):,} bytes\n")
    print(
        "| schedule | p | m | actions | encode | bytes per action | open "
        "| frame (p5/p50/p95) | all layers |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for browser in launch():
            for name, ranks, microbatches, chunks in CASES:
                schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
                timeline = db.simulate(schedule, COSTS)
                encode([timeline])
                begin = time.perf_counter()
                data = len(json.dumps(encode([db.simulate(schedule, COSTS)])))
                encoding = time.perf_counter() - begin
                path = Path(folder) / "page.html"
                save([timeline], path)
                page = browser.new_page(viewport={"width": 1200, "height": 900})
                page.goto("about:blank")
                begin = time.perf_counter()
                page.goto(path.as_uri())
                page.wait_for_selector("debubble-timeline[ready]")
                opening = time.perf_counter() - begin
                page.wait_for_timeout(500)
                columns = []
                for layers in (["bubbles", "memory"], ["p2p", "critical"]):
                    frames = page.evaluate(FRAMES, layers)
                    columns.append("{low:.1f} / {median:.1f} / {high:.1f} ms".format(**frames))
                page.close()
                print(
                    f"| {name} | {ranks} | {microbatches:,} | {len(schedule):,} "
                    f"| {encoding:.2f} s | {data / len(schedule):.2f} | {opening:.2f} s "
                    f"| {' | '.join(columns)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
