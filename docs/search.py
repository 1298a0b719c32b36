"""Words that readers search for, and the pages that answer them, whatever their titles are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ANSWERS = {
    "Out of memory (OOM)": "memory",
    "Activation memory too large": "memory",
    "Deadlock": "hangs",
    "Hang, NCCL timeout": "hangs",
    "Slow run": "trace",
    "Straggler": "trace",
    "Slow links, latency": "jitter",
    "Bubble: idle GPUs": "concepts",
    "MFU, tokens per second": "plan",
    "Parallelism degrees: TP, PP, DP, CP": "plan",
    "Megatron-LM": "megatron",
    "TorchTitan, DeepSpeed, NeMo": "frameworks",
    "Best schedule": "choose",
    "Gallery of schedules": "schedules/index",
}
"""Entries of the search and the page each leads to."""


def add_answers(site: Path) -> None:
    """Put entries, pages and sections in this order into the index of the search.

    The search prefers titles, then paths, then what comes first. A site that is opened from a
    folder reads the index from a script.
    """
    path = site / "search.json"
    index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    pages = {item["location"]: item for item in index["items"] if item["level"] == 1}
    entries = []
    for title, name in ANSWERS.items():
        page = pages[f"{name}.html"]
        entries.append(page | {"title": title, "path": [*page["path"], title]})
    rest = sorted(index["items"], key=lambda item: (item["level"] != 1, len(item["title"])))
    index["items"] = [*entries, *rest]
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    (site / "search.js").write_text(f"var __index={text};\n", encoding="utf-8")
