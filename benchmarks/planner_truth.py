"""Does a training step take as long as the planner says? Writes docs/planner-truth.md.

    python benchmarks/planner_truth.py ROWS.csv … [-o docs/planner-truth.md]

The files have published measurements in the columns of `published_rows.py`; they are no part of the
project. No figure is of a row that contributed to its own prediction: the efficiencies are fitted
anew without the rows that are left out together with it (`planner_efficiencies.py`).
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from planner_efficiencies import FOLDS, Judged, errors, judged, measured, mfu
from planner_parts import chart, curves, gain_of_two_chunks
from published_rows import read_rows, run_rows

from debubble.core.errors import ParameterError
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.measured_rows import MeasuredRow, read_row
from debubble.planner.cost.published_efficiencies import Factors, generation, shipped_factors
from debubble.planner.cost.step import step_time

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


def figures(rows: Iterable[Judged]) -> str:
    """Cells of a table: number, median, 90th percentile, bias, and share inside the error bar."""
    rows = list(rows)
    sizes = sorted(abs(row.error) for row in rows)
    if not sizes:
        return "0 | – | – | – | – | –"
    ninth = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
    inside = sum(row.shortfall <= row.case.step_error for row in rows) / len(rows)
    bar = median(row.case.step_error for row in rows)
    bias = median(row.error for row in rows)
    return (
        f"{len(sizes)} | {median(sizes):.1%} | {ninth:.1%} | {bias:+.1%} | ± {bar:.0%} |"
        f" {inside:.0%}"
    )


HEAD = (
    " | rows | median | 90 % within | bias | error bar | inside it |\n|---|---|---|---|---|---|---|"
)


def by(rows: Sequence[Judged], key: Callable[[Judged], str], title: str) -> Iterator[str]:
    """Lines of a table with a row for every value of a key."""
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    yield f"| {title}" + HEAD
    for name, found in sorted(groups.items()):
        yield f"| {name} | {figures(found)} |"


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


def worst(rows: Iterable[Judged], count: int) -> Iterator[str]:
    """The dense rows that are furthest off, one for each explanation."""
    yield "| plan | measured | predicted | error | why |\n|---|---|---|---|---|"
    seen: set[str] = set()
    for one in sorted(rows, key=lambda row: -abs(row.error)):
        row = one.item.row
        why = next((text for test, text in WHY if test(row)), "not known")
        if row["experts"] or group_of(one).endswith("below 30 %") or why in seen:
            continue
        seen.add(why)
        sizes = " ".join(f"{key} {row[key]}" for key in ("tp", "pp", "vp", "cp") if row[key])
        plan = f"{row['model']}, {row['gpus']} {row['gpu']}, {row['precision'].split()[0]}, {sizes}"
        times = f"{one.item.seconds:.4g} s | {one.seconds:.4g} s | {one.error:+.1%}"
        yield f"| {plan} ({source_of(row).split(',')[0]}) | {times} | {why} |"
        if len(seen) == count:
            return


def tau(pairs: list[tuple[float, float]]) -> float:
    """Kendall's rank correlation of pairs of times."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    agree, differ = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    return (agree - differ) / max(agree + differ, 1)


SAME = ("source", "model", "layers", "heads", "gpu", "gpus", "global_batch", "seq", "precision")


NEAR_FULL = 68e9
"""Bytes of a measured peak on H100 from which the allocator's retries take most of a step."""


def apart(one: Judged) -> bool:
    """Whether a row's measured step is of an effect that its columns do not tell, or not in full.

    By columns and measurements alone: a peak near the memory; or a pipeline of nanotron with
    replicas and without ZeRO, of which some wait for every microbatch and others do not.
    """
    row, plan = one.item.row, one.item.plan
    if row["framework"] != "nanotron":
        return False
    waits = row["zero"] == "0" and row["pp"] != "1" and plan.case.degrees.dp > 1
    return waits or (plan.memory or 0.0) > NEAR_FULL


def ranking(rows: Iterable[Judged]) -> Iterator[str]:
    """Rank correlations of groups of at least four plans that differ in nothing but the plan."""
    groups = defaultdict(list)
    for one in rows:
        groups[tuple(one.item.row[key] for key in SAME)].append(one)
    yield "| plans | number | tau | tau, MFU from 30 % | left out | tau | fastest plan's rank |"
    yield "|---|---|---|---|---|---|---|"
    columns: list[list[float]] = [[], [], []]
    for key, found in sorted(groups.items()):
        if len(found) < 4:
            continue
        quick = [one for one in found if mfu(one.item.case, one.item.seconds) >= EAGER]
        rest = [one for one in found if not apart(one)]
        pairs = [(one.item.seconds, one.seconds) for one in found]
        cells = []
        for column, some in zip(columns, (found, quick, rest), strict=True):
            if len(some) >= 4:
                column.append(tau([(one.item.seconds, one.seconds) for one in some]))
            cells.append(f"{column[-1]:.2f}" if len(some) >= 4 else "–")
        rank = sorted(predicted for _, predicted in pairs).index(min(pairs)[1]) + 1
        name = f"{key[1]}, {key[5]} {key[4]}, batch {key[6]} of {key[7]} ({key[0].split()[0]})"
        texts = f"{cells[0]} | {cells[1]} | {len(found) - len(rest)} | {cells[2]}"
        yield f"| {name} | {len(found)} | {texts} | {rank} |"
    one, two, three = (f"**{median(values):.2f}**" if values else "–" for values in columns)
    yield f"| **median of {len(columns[0])} groups** | | {one} | {two} | | {three} | |"


def repeats(rows: Iterable[Judged]) -> Iterator[str]:
    """How much two measurements of one plan differ: no model's order of plans is surer."""
    same = defaultdict(list)
    for one in rows:
        row = one.item.row
        same[tuple(row[key] for key in sorted(row) if key not in REPEATED)].append(one.item)
    differences = defaultdict(list)
    for found in same.values():
        for one, other in combinations(found, 2):
            ratio = math.log(one.seconds / other.seconds)
            differences[one.row["framework"]].append(abs(ratio))
    yield "| framework | pairs | median | 90 % within |\n|---|---|---|---|"
    for name, sizes in sorted(differences.items()):
        sizes.sort()
        ninth = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
        yield f"| {name} | {len(sizes)} | {median(sizes):.2f} | {ninth:.2f} |"


REPEATED = ("step_s", "tflops_per_gpu", "mfu", "mem_gb", "notes", "source")
"""Columns in which measurements of one plan differ."""


FILLED = (0.15, 0.3, 0.5, 0.75, 0.85, 0.95, 1.1)
"""Shares of the memory between which plans are counted."""


def crashes(paths: Sequence[str]) -> Iterator[str]:
    """Plans of nanotron that ended early, by their predicted share of the memory."""
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for path in paths:
        for row, result in zip(read_rows(path), run_rows(path), strict=True):
            if row["framework"] == "nanotron" and result["memory"]:
                share = result["memory"] / read_row(row, "row").request.capacity
                own = counts[sum(share >= limit for limit in FILLED)]
                own[0] += 1
                own[1] += not result["measured"]
    yield "| predicted share of the memory | plans | ended early | share |\n|---|---|---|---|"
    for at, (number, ended) in sorted(counts.items()):
        low = f"{FILLED[at - 1]:.0%}" if at else "0"
        name = f"{low} to {FILLED[at]:.0%}" if at < len(FILLED) else f"above {low}"
        yield f"| {name} | {number} | {ended} | {ended / number:.0%} |"


def verdicts(paths: Sequence[str]) -> Iterator[str]:
    """Plans that ran, or ran out of memory, by what is said of them."""
    groups: dict[str, dict[str, int]] = defaultdict(
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
            groups[f"{row['framework']}, {ran}"][result["fits"]] += 1
    yield "| plans of | fits | may not fit | too large |\n|---|---|---|---|"
    for name, counts in sorted(groups.items()):
        yield f"| {name} | " + " | ".join(map(str, counts.values())) + " |"


def memory(paths: Sequence[str]) -> Iterator[str]:
    """Predicted peaks over measured ones."""
    groups = defaultdict(list)
    for path in paths:
        for row, result in zip(read_rows(path), run_rows(path), strict=True):
            if result["memory"] and result["measured_memory"]:
                groups[source_of(row)].append(result["memory"] / result["measured_memory"] - 1)
    yield "| source | rows | median | 90 % within | bias |\n|---|---|---|---|---|"
    for name, found in sorted(groups.items()):
        sizes = sorted(map(abs, found))
        ninth = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
        texts = f"{median(sizes):.1%} | {ninth:.1%} | {median(found):+.1%}"
        yield f"| {name} | {len(sizes)} | {texts} |"


def learned(plan: MeasuredRow) -> Factors:
    """Factors with the efficiency that a row says."""
    assert plan.seconds is not None
    return calibrated(plan.with_factors(Factors()), plan.seconds)


def crosswise(table: list[dict[str, str]]) -> Iterator[str]:
    """Each column of a pair predicted with the efficiency of the other."""
    yield "| model | calibrated on | predicted | seconds | measured | error |"
    yield "|---|---|---|---|---|---|"
    pairs = defaultdict(list)
    for row in table:
        if "2205.05198 Tables" in row["source"]:
            pairs[row["model"]].append((row["recompute"], read_row(row, "row")))
    for model, two in pairs.items():
        for (first, known), (second, other) in (two, two[::-1]):
            found = step_time(other.with_factors(learned(known))).seconds
            error = found / (other.seconds or 1) - 1
            texts = f"{model} | {first} | {second} | {found:.4g}"
            yield f"| {texts} | {other.seconds} | {error:+.1%} |"


def efficiencies() -> Iterator[str]:
    """The shipped efficiencies."""
    yield "| GPU | tp | precision | software | efficiency | steps | from |"
    yield "|---|---|---|---|---|---|---|"
    for item in shipped_factors().table:
        software = item.runtime + (", experts" if item.experts else "")
        texts = f"{item.gpu} | {item.tp} | {item.precision} | {software} | {item.efficiency}"
        yield f"| {texts} | {item.rows} | {item.source} |"


def bars(found: Sequence[Judged]) -> Iterator[str]:
    """The shipped errors."""
    yield "| software | GPUs | efficiency | shape | error | rows |\n|---|---|---|---|---|---|"
    for runtime, chip, match, shape, error, rows in errors(found):
        cells = (runtime or "all", chip or "all", match, shape, f"± {error:.0%}", rows)
        yield "| " + " | ".join(map(str, cells)) + " |"


def page(paths: Sequence[str]) -> str:
    """The whole page."""
    tables = [row for path in paths for row in read_rows(path)]
    results = [result for path in paths for result in run_rows(path)]
    skipped = sum(bool(result["skipped"]) for result in results)
    rows = measured(paths)
    folds = {fold: judged(rows, fold) for fold in FOLDS}
    near = folds["release and model"]
    text = Path(__file__).with_name("planner_truth.md").read_text(encoding="utf-8")
    parts = {
        "publication": "\n".join(by(folds["publication"], group_of, "rows of")),
        "release": "\n".join(by(near, group_of, "rows of")),
        "frameworks": "\n".join(by(near, lambda one: one.item.row["framework"], "framework")),
        "matches": "\n".join(
            by([*near, *folds["publication"]], lambda one: one.match, "efficiency of")
        ),
        "sources": "\n".join(by(near, lambda one: source_of(one.item.row), "source")),
        "worst": "\n".join(worst(near, 15)),
        "ranking": "\n".join(ranking(near)),
        "memory": "\n".join(memory(paths)),
        "verdicts": "\n".join(verdicts(paths)),
        "crashes": "\n".join(crashes(paths)),
        "repeats": "\n".join(repeats(near)),
        "apart": f"{sum(map(apart, near))} of {len(near)} rows",
        "crosswise": "\n".join(crosswise(tables)),
        "interleaved": f"{gain_of_two_chunks():.3f}",
        "curves": "\n".join(curves()),
        "chart": chart(),
        "efficiencies": "\n".join(efficiencies()),
        "errors": "\n".join(bars([*folds["publication"], *near])),
        "skipped": f"{skipped} of {len(tables)}",
    }  # fmt: skip
    for name, value in parts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def main() -> None:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(description="Predicted against published steps.")
    parser.add_argument("rows", metavar="ROWS.csv", nargs="+")
    parser.add_argument("-o", "--output", metavar="FILE.md")
    typed = parser.parse_args()
    try:
        text = page(typed.rows)
    except ParameterError as error:
        raise SystemExit(str(error)) from None
    if typed.output:
        Path(typed.output).write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
