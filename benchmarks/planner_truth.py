"""Does a training step take as long as the planner says? Writes docs/planner-truth.md and its data.

    python benchmarks/planner_truth.py ROWS.csv … [-o docs/planner-truth.md] [--data FOLDER]

The files have published measurements in the columns of `published_rows.py`; they are no part of the
project. No figure is of a row that contributed to its own prediction: the efficiencies are fitted
anew without the rows that are left out together with it (`planner_efficiencies.py`).
"""

from __future__ import annotations

import argparse
import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from planner_efficiencies import FOLDS, Judged, errors, judged, measured, mfu
from planner_page import (
    Row,
    answer,
    kinds,
    percent,
    ranking_summary,
    verdict_table,
    worst_table,
)
from planner_parts import chart, curves, gain_of_two_chunks
from published_rows import read_rows, run_rows

from debubble.core.errors import ParameterError
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.measured_rows import MeasuredRow, read_row
from debubble.planner.cost.published_efficiencies import Factors, generation, shipped_factors
from debubble.planner.cost.step import step_time

DATA = Path(__file__).with_name("planner_truth")

WHY = (
    (lambda row: "MegaScale" in row["source"] and row["notes"].startswith("MegaScale"),
     "the system under test changed the model: parallel blocks, sliding windows"),
    (lambda row: "ZeRO-3" in row["notes"], "ZeRO-3 of 2021 gathers weights without overlap"),
    (lambda row: "773" in row["source"],
     "512 tokens on 8 stages: the host of torchtitan, which is not modeled"),
    (lambda row: "rowwise" in row["precision"], "scales per row, of early kernels"),
    (lambda row: row["framework"] == "aa-scaling" and row["pp"] != "1",
     "pipelines with 2,048 tokens take several microbatches longer"),
    (lambda row: row["framework"] == "aa-scaling", "one efficiency for all of its shapes"),
    (lambda row: row["framework"] == "nanotron", "waits of a second per microbatch on many nodes"),
    (lambda row: "bigscience" in row["source"],
     "kernels before flash attention, whose speed depended on head size and batch"),
    (lambda row: int(row["cp"] or 1) > 1 and row["framework"] == "torchtitan",
     "context parallelism of early torchtitan: attention kernels per chunk"),
    (lambda row: row["framework"] == "torchtitan", "software differs from row to row"),
    (lambda row: "Zero Bubble" in row["source"],
     "hidden size, sequence and microbatch of these rows are recalled"),
    (lambda row: "model_table" in row["source"],
     "microbatch, chunks and recompute are not published"),
    (lambda row: row["experts"] != "", "containers of the same year differ by 30 % and more"),
    (lambda row: int(row["gpus"]) >= 96 and row["pp"] == "1", "one microbatch on many replicas"),
    (lambda row: row["framework"] == "nemo", "containers differ: 5 to 20 % for the same plan"),
    (lambda row: "FSDP" in row["zero"], "attention kernels of 2023, slow at long sequences"),
)  # fmt: skip
"""Explanations of rows that are far off, the first that applies."""

EAGER = 0.3
"""Share of the 16-bit peak from which eager code was not limited by its cluster."""


def group_of(one: Judged) -> str:
    """Kind of a row."""
    row, case = one.item.row, one.item.case
    shape = "pipelined" if case.degrees.pp > 1 else "one stage"
    if case.model.experts:
        return f"experts, {shape}"
    if row["framework"] == "nanotron":
        slow = mfu(case, one.item.seconds) < EAGER
        return "nanotron, MFU below 30 %" if slow else f"nanotron, MFU from 30 %, {shape}"
    if case.gpu.name.startswith("mi"):
        return "AMD"
    if row["framework"] in ("torchtitan", "llm-foundry"):
        return f"{row['framework']}, FSDP"
    if generation(case.gpu.name) == "ampere":
        kind = "AA-Scaling" if row["framework"] == "aa-scaling" else f"Megatron, {shape}"
        return f"A100, {kind}"
    return f"NVIDIA's containers, dense, {shape}"


def figures(rows: Sequence[Judged]) -> Row:
    """Number of rows, median, 90th percentile, bias, error bar, and share inside it."""
    sizes = sorted(abs(row.error) for row in rows)
    ranges = [row.case.step_range for row in rows]
    inside = sum(low <= row.ratio <= high for row, (low, high) in zip(rows, ranges, strict=True))
    return {
        "rows": len(sizes), "median": share(median(sizes)), "ninth": share(ninth(sizes)),
        "bias": share(median(row.error for row in rows)),
        "bar": share(median(own.error for own in ranges)), "inside": share(inside / len(rows)),
    }  # fmt: skip


def ninth(sizes: Sequence[float]) -> float:
    """The 90th percentile of sorted sizes."""
    return sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]


def share(value: float) -> float:
    """A share as data files have it."""
    return round(value, 4)


def error_rows(apart: dict[str, list[Judged]]) -> Iterator[Row]:
    """Errors of both ways of leaving out, by kind, framework, source and matching efficiency."""
    keys: dict[str, Callable[[Judged], str]] = {
        "kind": group_of,
        "framework": lambda one: one.item.row["framework"],
        "source": lambda one: source_of(one.item.row),
        "efficiency of": lambda one: one.match,
    }
    for fold, rows in apart.items():
        for by, key in keys.items():
            groups = defaultdict(list)
            for row in rows:
                groups[key(row)].append(row)
            for name, found in sorted(groups.items()):
                yield {"left_out": fold, "by": by, "group": name} | figures(found)


def source_of(row: dict[str, str]) -> str:
    """Source of a row in a few words: repository or paper, release or day, and GPU."""
    words = row["source"].replace("(", "").replace(")", "").split()
    name = words[0].split("/")[-1] if "/" in words[0] else " ".join(words[:2])
    if words[0] == "bigscience":
        name = f"bigscience {words[-1]}-{words[-2]}"
    if "container" in words:
        name += f" {words[words.index('container') + 1]}"
    name = " ".join((name, *(word[1:] for word in words[1:] if word.startswith("@v"))))
    return f"{name}, {row['gpu']}" + (", experts" if row["experts"] else "")


def worst(rows: Iterable[Judged]) -> Iterator[Row]:
    """The dense rows that are furthest off, one for each explanation."""
    seen: set[str] = set()
    for one in sorted(rows, key=lambda row: -abs(row.error)):
        row = one.item.row
        why = next((text for test, text in WHY if test(row)), "not known")
        if row["experts"] or group_of(one).endswith("below 30 %") or why in seen:
            continue
        seen.add(why)
        sizes = " ".join(f"{key} {row[key]}" for key in ("tp", "pp", "vp", "cp") if row[key])
        yield {
            "source": source_of(row).split(",")[0],
            "plan": f"{row['model']}, {row['gpus']} {row['gpu']}, {row['precision'].split()[0]}",
            "degrees": sizes, "measured": f"{one.item.seconds:.4g}",
            "predicted": f"{one.seconds:.4g}", "error": share(one.error), "why": why,
        }  # fmt: skip


def tau(pairs: list[tuple[float, float]]) -> float:
    """Kendall's rank correlation of pairs of times."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    agree, differ = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    return (agree - differ) / max(agree + differ, 1)


SAME = ("source", "model", "layers", "heads", "gpu", "gpus", "global_batch", "seq", "precision")


NEAR_FULL = 68e9
"""Bytes of a measured peak on H100 from which the allocator's retries take most of a step."""


def is_apart(one: Judged) -> bool:
    """Whether a row's measured step is of an effect that its columns do not tell, or not in full.

    By columns and measurements alone: a peak near the memory; or a pipeline of nanotron with
    replicas and without ZeRO, of which some wait for every microbatch and others do not.
    """
    row, plan = one.item.row, one.item.plan
    if row["framework"] != "nanotron":
        return False
    waits = row["zero"] == "0" and row["pp"] != "1" and plan.case.degrees.dp > 1
    return waits or (plan.memory or 0.0) > NEAR_FULL


def tau_of(rows: Sequence[Judged]) -> float | str:
    """Rank correlation of predicted and measured steps; nothing for fewer than four plans."""
    pairs = [(one.item.seconds, one.seconds) for one in rows]
    return round(tau(pairs), 2) if len(pairs) >= 4 else ""


def ranking(rows: Iterable[Judged]) -> Iterator[Row]:
    """Rank correlations of groups of at least four plans that differ in nothing but the plan."""
    groups = defaultdict(list)
    for one in rows:
        groups[tuple(one.item.row[key] for key in SAME)].append(one)
    for key, found in sorted(groups.items()):
        if len(found) < 4:
            continue
        pairs = [(one.item.seconds, one.seconds) for one in found]
        quick = [one for one in found if mfu(one.item.case, one.item.seconds) >= EAGER]
        rest = [one for one in found if not is_apart(one)]
        yield {
            "source": key[0].split()[0], "model": key[1], "gpus": key[5], "gpu": key[4],
            "batch": key[6], "sequence": key[7], "plans": len(found), "tau": tau_of(found),
            "tau_from_mfu_30": tau_of(quick), "apart": len(found) - len(rest),
            "tau_of_the_rest": tau_of(rest),
            "rank_of_fastest": sorted(it for _, it in pairs).index(min(pairs)[1]) + 1,
        }  # fmt: skip


REPEATED = ("step_s", "tflops_per_gpu", "mfu", "mem_gb", "notes", "source")
"""Columns in which measurements of one plan differ."""


def repeats(rows: Iterable[Judged]) -> Iterator[Row]:
    """How much two measurements of one plan differ: no model's order of plans is surer."""
    same = defaultdict(list)
    for one in rows:
        row = one.item.row
        same[tuple(row[key] for key in sorted(row) if key not in REPEATED)].append(one.item)
    differences = defaultdict(list)
    for found in same.values():
        for one, other in combinations(found, 2):
            longer, shorter = max(one.seconds, other.seconds), min(one.seconds, other.seconds)
            differences[one.row["framework"]].append(longer / shorter - 1)
    for name, sizes in sorted(differences.items()):
        yield {
            "framework": name, "pairs": len(sizes), "median": share(median(sizes)),
            "ninth": share(ninth(sorted(sizes))),
        }  # fmt: skip


FILLED = (0.15, 0.3, 0.5, 0.75, 0.85, 0.95, 1.1)
"""Shares of the memory between which plans are counted."""


def crashes(paths: Sequence[str]) -> Iterator[Row]:
    """Plans of nanotron that ended early, by their predicted share of the memory."""
    counts: dict[int, list[bool]] = defaultdict(list)
    for path in paths:
        for row, result in zip(read_rows(path), run_rows(path), strict=True):
            if row["framework"] == "nanotron" and result["memory"]:
                filled = result["memory"] / read_row(row, "row").request.capacity
                counts[bisect_right(FILLED, filled)].append(not result["measured"])
    for at, ended in sorted(counts.items()):
        yield {
            "from": (0, *FILLED)[at], "to": (*FILLED, "")[at], "plans": len(ended),
            "ended_early": sum(ended),
        }  # fmt: skip


def verdicts(paths: Sequence[str]) -> Iterator[Row]:
    """Plans that ran, or ran out of memory, by what is said of them."""
    groups: dict[tuple[str, str], dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(("yes", "maybe", "no"), 0)
    )
    for path in paths:
        for row, result in zip(read_rows(path), run_rows(path), strict=True):
            if result["fits"] is None:
                continue
            ran = (
                "ran out of memory"
                if row["notes"].startswith("OOM") or "; OOM" in row["notes"]
                else ""
            )
            if row["notes"] == "crashed/oom":
                ran = "crashed or ran out of memory"
            if not ran and not result["measured"]:
                continue
            open_ = "recompute none" in result["assumed"]
            ran = ran or ("ran, recompute not published" if open_ else "ran")
            groups[row["framework"], ran][result["fits"]] += 1
    for (framework, ran), counts in sorted(groups.items()):
        yield {
            "framework": framework, "plans": ran, "fits": counts["yes"],
            "may_not_fit": counts["maybe"], "too_large": counts["no"],
        }  # fmt: skip


def peaks(paths: Sequence[str]) -> Iterator[Row]:
    """Predicted peaks over measured ones, by source."""
    groups = defaultdict(list)
    for path in paths:
        for row, result in zip(read_rows(path), run_rows(path), strict=True):
            if result["memory"] and result["measured_memory"]:
                groups[source_of(row)].append(result["memory"] / result["measured_memory"] - 1)
    for name, found in sorted(groups.items()):
        sizes = sorted(map(abs, found))
        yield {
            "source": name, "rows": len(sizes), "median": share(median(sizes)),
            "ninth": share(ninth(sizes)), "bias": share(median(found)),
        }  # fmt: skip


def learned(plan: MeasuredRow) -> Factors:
    """Factors with the efficiency that a row says."""
    assert plan.seconds is not None
    return calibrated(plan.with_factors(Factors()), plan.seconds)


def crosswise(table: list[dict[str, str]]) -> Iterator[Row]:
    """Each column of a pair predicted with the efficiency of the other."""
    pairs = defaultdict(list)
    for row in table:
        if "2205.05198 Tables" in row["source"]:
            pairs[row["model"]].append((row["recompute"], read_row(row, "row")))
    for model, two in pairs.items():
        for (first, known), (second, other) in (two, two[::-1]):
            found = step_time(other.with_factors(learned(known))).seconds
            yield {
                "model": model, "calibrated_on": first, "plan": second, "measured": other.seconds,
                "predicted": f"{found:.4g}", "error": share(found / (other.seconds or 1) - 1),
            }  # fmt: skip


def efficiencies() -> Iterator[Row]:
    """The shipped efficiencies."""
    for item in shipped_factors().table:
        yield {
            "gpu": item.gpu, "tp": item.tp, "precision": item.precision,
            "software": item.runtime + (", experts" if item.experts else ""),
            "efficiency": item.efficiency, "steps": item.rows, "source": item.source,
        }  # fmt: skip


def bars(found: Sequence[Judged]) -> Iterator[Row]:
    """The shipped error bars, as ratios to the predicted time."""
    for runtime, chip, match, shape, low, high, rows in errors(found):
        yield {
            "software": runtime or "all", "gpus": chip or "all", "efficiency_of": match,
            "shape": shape, "low": low, "high": high, "rows": rows,
        }  # fmt: skip


def data_of(paths: Sequence[str]) -> dict[str, list[Row]]:
    """The rows of all data files."""
    rows = measured(paths)
    apart = {fold: judged(rows, fold) for fold in FOLDS}
    near = apart["release and model"]
    return {
        "errors": list(error_rows(apart)),
        "ranking": list(ranking(near)),
        "repeats": list(repeats(near)),
        "crashes": list(crashes(paths)),
        "verdicts": list(verdicts(paths)),
        "peaks": list(peaks(paths)),
        "pairs": list(crosswise([row for path in paths for row in read_rows(path)])),
        "worst": list(worst(near)),
        "efficiencies": list(efficiencies()),
        "error_bars": list(bars([*apart["publication"], *near])),
    }


def page(paths: Sequence[str], data: dict[str, list[Row]]) -> str:
    """The whole page."""
    results = [result for path in paths for result in run_rows(path)]
    skipped = sum(bool(result["skipped"]) for result in results)
    text = Path(__file__).with_name("planner_truth.md").read_text(encoding="utf-8")
    off = [abs(float(str(row["error"]))) for row in data["pairs"]]
    parts = {
        "answer": answer(data["errors"]),
        "kinds": "\n".join(kinds(data["errors"])),
        "worst": "\n".join(worst_table(data["worst"], 6)),
        "ranking": ranking_summary(data["ranking"]),
        "verdicts": "\n".join(verdict_table(data["verdicts"])),
        "pairs": percent(max(off, default=0)),
        "interleaved": f"{gain_of_two_chunks():.2f}",
        "curves": "\n".join(curves()),
        "chart": chart(),
        "skipped": f"{skipped} of {len(results)}",
        "ended": str(sum(not one["skipped"] and not one["measured"] for one in results)),
    }
    for name, value in parts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def save(data: dict[str, list[Row]], folder: Path) -> None:
    """Write a CSV file of each kind of rows."""
    folder.mkdir(exist_ok=True)
    for name, rows in data.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            out = csv.DictWriter(file, list(rows[0]) if rows else ["none"], lineterminator="\n")
            out.writeheader()
            out.writerows(rows)


def main() -> None:
    """Write the page and its data, or print the page."""
    parser = argparse.ArgumentParser(description="Predicted against published steps.")
    parser.add_argument("rows", metavar="ROWS.csv", nargs="+")
    parser.add_argument("-o", "--output", metavar="FILE.md")
    parser.add_argument("--data", metavar="FOLDER", type=Path, default=DATA)
    typed = parser.parse_args()
    try:
        data = data_of(typed.rows)
        text = page(typed.rows, data)
    except ParameterError as error:
        raise SystemExit(str(error)) from None
    if typed.output:
        save(data, typed.data)
        Path(typed.output).write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
