"""Does a training step take as long as the planner says? Writes docs/planner-truth.md.

    python benchmarks/planner_truth.py ROWS.csv [-o docs/planner-truth.md]

ROWS.csv has published measurements in the columns of `published_rows.py`; it is no part of the
project. Rows that gave a shipped efficiency or a constant are left out of every figure.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from published_rows import read_rows, run_rows
from row_plans import RowPlan, read_row, spread

from debubble.core.errors import ParameterError
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.published_efficiencies import DEFAULT, Factors, shipped_factors
from debubble.planner.cost.step import step_time
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.hardware.kernel_times import product_time
from debubble.planner.hardware.links import RankGroup, all_reduce
from debubble.planner.memory.peaks import memory_of
from debubble.planner.model.files import read_model

MIB = 2**20
CURVES = {
    ("h200", 8, 8): {1: 46e-6, 16: 134e-6, 64: 339e-6, 256: 1.08e-3, 1024: 4.05e-3, 4096: 15.9e-3},
    ("b200", 8, 8): {1: 51e-6, 16: 115e-6, 256: 727e-6, 4096: 10.1e-3},
    ("b200", 32, 8): {1: 406e-6, 16: 508e-6, 256: 2.27e-3, 4096: 22.1e-3},
}
"""Measured all-reduces in seconds by MiB (Machine Learning Engineering, network benchmarks)."""
CHART = {
    512: 28, 768: 65, 1024: 89, 1280: 152, 1536: 149, 1792: 202, 2048: 195, 2304: 244, 3072: 236,
    4096: 259, 4608: 275, 5120: 261, 5632: 281, 8192: 291,
}  # fmt: skip
"""TFLOP/s of square bf16 products on A100, read off NVIDIA's cuBLAS chart."""

CONSTANTS = ("2205.05198 sec 6.3", "asyncTP_llama3_h100")
"""Sources whose rows say what step-end collectives and overlapped tensor parallelism reach."""

WHY = (
    (lambda row: "MegaScale" in row["source"] and row["notes"].startswith("MegaScale"),
     "the system under test changed the model: parallel blocks, sliding windows"),
    (lambda row: "25.05" in row["source"] and row["gpu"] == "GB200",
     "first recipes for this GPU; the efficiency is from a container nine months younger"),
    (lambda row: row["global_batch"] == "1568" and row["micro_batch"] == "4" and row["pp"] == "6",
     "the source prints this time for 1568 sequences and nearly the same for 2048"),
    (lambda row: row["heads"] in ("96", "104") and "bigscience" in row["source"],
     "heads of 128: the kernels of the time were slower there than at 192 and 208, unexplained"),
    (lambda row: "bigscience" in row["source"] and row["heads"] == "128",
     "narrow heads in large batches without flash attention"),
    (lambda row: "bigscience" in row["source"] and row["micro_batch"] in ("1", "2"),
     "small microbatches over 8 ranks ran slower than their shapes say; the days differ by 4 %"),
    (lambda row: "bigscience" in row["source"], "one efficiency for microbatches of 1 to 8"),
    (lambda row: int(row["cp"] or 1) > 1 and "torchtitan" in row["source"],
     "context parallelism of early torchtitan: attention kernels per chunk, not the ring's time"),
    (lambda row: "torchtitan" in row["source"], "software differs from row to row of this source"),
    (lambda row: "Zero Bubble" in row["source"],
     "hidden size, sequence and microbatch of these rows are recalled; vocabulary is not given"),
    (lambda row: "MT-NLG" in row["model"],
     "DeepSpeed of 2021; the efficiency is that of BigScience, a year later"),
    (lambda row: "MegaScale" in row["source"],
     "192 replicas: gradients over the network are one rate for all clusters"),
    (lambda row: "model_table" in row["source"],
     "microbatch, chunks and recompute are not published"),
    (lambda row: row["experts"] != "",
     "mixtures of experts: containers of the same year differ by 30 % and more"),
    (lambda row: "Megatron-Bridge" in row["source"] or "dgxc" in row["source"],
     "containers differ: the same plan takes 5 to 12 % more or less from one to the next"),
    (lambda row: "FSDP" in row["zero"], "one efficiency for all models and sequence lengths"),
)  # fmt: skip
"""Explanations of rows that are far off, the first that applies."""


@dataclass(frozen=True)
class Judged:
    """A row with its prediction."""

    row: dict[str, str]
    result: dict[str, Any]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return float(self.result["error"])


def judged(path: str, factors: Factors | None = None) -> list[Judged]:
    """Rows with a measured step that gave no efficiency and no constant."""
    pairs = zip(read_rows(path), run_rows(path, factors), strict=True)
    return [
        Judged(row, result)
        for row, result in pairs
        if result["error"] is not None
        and not result["calibrated"]
        and not any(text in row["source"] for text in CONSTANTS)
    ]


def figures(rows: Iterable[Judged]) -> str:
    """Cells of a table: number, median, 90th percentile, largest error, and the median's sign."""
    rows = list(rows)
    errors = sorted(abs(row.error) for row in rows)
    if not errors:
        return "0 | – | – | – | –"
    ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
    bias = median(row.error for row in rows)
    shares = (median(errors), ninth, errors[-1])
    return f"{len(errors)} | " + " | ".join(f"{x:.1%}" for x in shares) + f" | {bias:+.1%}"


def source_of(row: dict[str, str]) -> str:
    """Source of a row in a few words: repository or paper, release or day."""
    words = row["source"].replace("(", "").replace(")", "").split()
    name = words[0].split("/")[-1] if "/" in words[0] else " ".join(words[:2])
    if words[0] == "bigscience":
        name = f"bigscience {words[-1]}-{words[-2]}"
    return " ".join((name, *(word[1:] for word in words[1:] if word.startswith("@v"))))


def family(row: dict[str, str]) -> str:
    """Source and GPU of a row."""
    return f"{source_of(row)}, {row['gpu']}"


def dense(row: Judged) -> bool:
    return not row.row["experts"]


def piped(row: Judged) -> bool:
    return row.row["pp"] != "1"


SETS: dict[str, Callable[[Judged], bool]] = {
    "dense, pipelined": lambda row: dense(row) and piped(row),
    "dense, one stage": lambda row: dense(row) and not piped(row),
    "experts, pipelined": lambda row: not dense(row) and piped(row),
    "experts, one stage": lambda row: not dense(row) and not piped(row),
}
HEAD = " | rows | median | 90 % within | largest | bias |\n|---|---|---|---|---|---|"


def summary(path: str) -> Iterator[str]:
    yield "| rows of" + HEAD
    rows = judged(path)
    for name, inside in SETS.items():
        yield f"| {name} | {figures(row for row in rows if inside(row))} |"
    for name, inside in tuple(SETS.items())[::2]:
        plain = (row for row in judged(path, Factors()) if inside(row))
        yield f"| {name}, one efficiency of {DEFAULT} for all | {figures(plain)} |"


def by_source(rows: list[Judged]) -> Iterator[str]:
    groups = defaultdict(list)
    for row in rows:
        if piped(row):
            groups[family(row.row) + ("" if dense(row) else ", experts")].append(row)
    yield "| source" + HEAD
    for name, found in sorted(groups.items()):
        yield f"| {name} | {figures(found)} |"


def memory(path: str) -> Iterator[str]:
    yield "| source | rows | median | 90 % within | largest | bias |\n|---|---|---|---|---|---|"
    groups = defaultdict(list)
    for row, result in zip(read_rows(path), run_rows(path), strict=True):
        if result["memory"] and result["measured_memory"]:
            error = result["memory"] / result["measured_memory"] - 1
            groups[family(row)].append(Judged(row, result | {"error": error}))
    for name, found in sorted(groups.items()):
        yield f"| {name} | {figures(found)} |"


def fits_with_full_recompute(row: dict[str, str]) -> bool:
    """Whether a row's plan fits where every layer is recomputed."""
    plan = read_row(row | {"recompute": "full"})
    step = step_time(plan.case(shipped_factors()))
    ranks = memory_of(plan.case(shipped_factors()), step.timeline)
    return all(rank.fits for rank in ranks)


def verdicts(path: str) -> Iterator[str]:
    """Plans that ran, or ran out of memory, by what is predicted of them."""
    groups = {
        "ran, recompute published": [0, 0],
        "ran, recompute not published, predicted without": [0, 0],
        "the same, with full recompute where none is too large": [0, 0],
        "ran out of memory": [0, 0],
    }
    ran, silent, some, over = groups.values()
    for row, result in zip(read_rows(path), run_rows(path), strict=True):
        if result["memory"]:
            fits = result["memory"] <= read_row(row).cluster.gpu.memory
            said = "recompute none" not in result["assumed"]
            group = over if row["notes"].startswith("OOM") else ran if said else silent
            group[not fits] += 1
            if group is silent:
                some[not (fits or fits_with_full_recompute(row))] += 1
    yield "| plans that | predicted to fit | predicted not to |\n|---|---|---|"
    for name, (fit, large) in groups.items():
        yield f"| {name} | {fit} | {large} |"


def worst(rows: list[Judged], count: int) -> Iterator[str]:
    yield "| plan | measured | predicted | error | why |\n|---|---|---|---|---|"
    found = [row for row in rows if dense(row) and piped(row)]
    for item in sorted(found, key=lambda row: -abs(row.error))[:count]:
        row, result = item.row, item.result
        why = next((text for test, text in WHY if test(row)), "not known")
        plan = (
            f"{row['model']}, {row['gpus']} {row['gpu']}, {row['precision'].split()[0]}, "
            + " ".join(
                f"{key} {row[key]}" for key in ("tp", "pp", "vp", "cp", "micro_batch") if row[key]
            )
        )
        times = f"{result['measured']:.4g} s | {result['step_time']:.4g} s | {item.error:+.1%}"
        yield f"| {plan} ({family(row).split(',')[0]}) | {times} | {why} |"


def tau(pairs: list[tuple[float, float]]) -> float:
    """Kendall's rank correlation of pairs of times."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    agree, differ = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    return (agree - differ) / max(agree + differ, 1)


def groups_of(table: list[dict[str, str]]) -> dict[tuple[str, ...], list[RowPlan]]:
    """Plans that share source, model, GPUs and batch, where there are four or more."""
    keys = (
        "source", "model", "layers", "heads", "gpu", "gpus", "global_batch", "seq", "precision"
    )  # fmt: skip
    found = defaultdict(list)
    for row in table:
        try:
            plan = read_row(row)
        except ValueError:
            continue
        if plan.seconds:
            found[tuple(row[key] for key in keys)].append(plan)
    return {key: plans for key, plans in found.items() if len(plans) >= 4}


def seconds(plan: RowPlan, factors: Factors) -> float:
    return step_time(plan.case(factors)).seconds


def learned(plan: RowPlan, factors: Factors) -> Factors:
    """Factors with the efficiency that a row says."""
    assert plan.seconds is not None
    return calibrated(plan.case(factors), plan.seconds)


def ranking(table: list[dict[str, str]]) -> Iterator[str]:
    yield "| plans | number | tau, shipped | tau, one row calibrates | fastest plan's rank |"
    yield "|---|---|---|---|---|"
    for key, plans in groups_of(table).items():
        columns = [
            [(plan.seconds or 0.0, seconds(plan, factors)) for plan in plans]
            for factors in (shipped_factors(), learned(plans[0], Factors()))
        ]
        fastest = min(columns[0])
        rank = sorted(predicted for _, predicted in columns[0]).index(fastest[1]) + 1
        source = source_of({"source": key[0]})
        name = f"{key[1]} on {key[5]} {key[4]}, batch {key[6]} ({source})"
        taus = " | ".join(f"{tau(column):.2f}" for column in columns)
        yield f"| {name} | {len(plans)} | {taus} | {rank} |"


def crosswise(table: list[dict[str, str]]) -> Iterator[str]:
    """Each column of a pair predicted with the efficiency of the other."""
    yield "| model | calibrated on | predicted | seconds | measured | error |"
    yield "|---|---|---|---|---|---|"
    pairs = defaultdict(list)
    for row in table:
        if "2205.05198 Tables" in row["source"]:
            pairs[row["model"]].append((row["recompute"], read_row(row)))
    for model, two in pairs.items():
        for (first, known), (second, other) in (two, two[::-1]):
            found = seconds(other, learned(known, Factors()))
            error = found / (other.seconds or 1) - 1
            texts = f"{model} | {first} | {second} | {found:.4g}"
            yield f"| {texts} | {other.seconds} | {error:+.1%} |"


def one_row(table: list[dict[str, str]]) -> Iterator[str]:
    """Every H100 row in bf16, from one row per tensor-parallel degree."""
    plans = []
    for row in table:
        if row["gpu"] == "H100-80GB-SXM" and "dgxc" in row["source"] and row["precision"] == "bf16":
            plan = read_row(row)
            if plan.seconds and not plan.model.experts:
                plans.append((row, plan))
    yield "| row | tp | calibrated on | predicted | measured | error |\n|---|---|---|---|---|---|"
    known: dict[int, tuple[str, RowPlan]] = {}
    for row, plan in plans:
        name = f"{row['model']}, {row['gpus']} GPUs"
        tp = plan.candidate.degrees.tp
        if tp not in known:
            known[tp] = (name, plan)
            continue
        found = seconds(plan, learned(known[tp][1], Factors()))
        error = found / (plan.seconds or 1) - 1
        texts = f"{name} | {tp} | {known[tp][0]} | {found:.4g} s | {plan.seconds} s"
        yield f"| {texts} | {error:+.1%} |"


def interleaved() -> str:
    """Gain of two chunks on torchtitan's 405B, as many microbatches as ranks."""
    model, cluster = read_model("llama-3.1-405b"), Cluster(find_gpu("h100-96gb-hbm2e"), 512)
    training = Training(64, 8192, "fp8", runtime=TORCH)
    times = []
    for chunks, schedule in ((1, "1f1b"), (2, "interleaved-1f1b")):
        degrees = Degrees(tp=8, dp=8, pp=8, chunks=chunks)
        layers = spread(len(model.layers), degrees.stages)
        candidate = Candidate(degrees, 1, 8, schedule, layers, "full", 2)
        times.append(
            step_time(Case(model, cluster, training, candidate, shipped_factors())).seconds
        )
    return f"{times[0] / times[1]:.3f}"


def curves() -> Iterator[str]:
    yield "| all-reduce | " + " | ".join(f"{size} MiB" for size in CURVES["h200", 8, 8]) + " |"
    yield "|---" * (len(CURVES["h200", 8, 8]) + 1) + "|"
    for (gpu, ranks, inside), times in CURVES.items():
        cells = []
        for size in CURVES["h200", 8, 8]:
            if size not in times:
                cells.append("–")
                continue
            found = all_reduce(GPUS[gpu], RankGroup(ranks, inside), size * MIB)
            cells.append(f"{found / times[size] - 1:+.0%}")
        yield f"| {ranks} {gpu.upper()} | " + " | ".join(cells) + " |"


def chart() -> str:
    """Mean error of square products on A100, relative to the chart's own best."""
    gpu = replace(GPUS["a100-80gb"], gemm=CHART[8192] / 312)
    errors = [
        abs(2 * n**3 / product_time(gpu, "bf16", n, n, n) / 1e12 / rate - 1)
        for n, rate in CHART.items()
    ]
    return f"{sum(errors) / len(errors):.1%} on average, {max(errors):.0%} at most (at 512)"


def efficiencies() -> Iterator[str]:
    yield "| GPU | tp | precision | software | efficiency | from |\n|---|---|---|---|---|---|"
    for item in shipped_factors().table:
        software = item.runtime + (", experts" if item.experts else "")
        texts = f"{item.gpu} | {item.tp} | {item.precision} | {software} | {item.efficiency}"
        yield f"| {texts} | {item.source}, {item.gpus} GPUs, {item.seconds:g} s |"


def page(path: str) -> str:
    """The whole page."""
    table, rows = read_rows(path), judged(path)
    skipped = [result["skipped"] for result in run_rows(path) if result["skipped"]]
    text = Path(__file__).with_name("planner_truth.md").read_text(encoding="utf-8")
    parts = {
        "summary": "\n".join(summary(path)),
        "sources": "\n".join(by_source(rows)),
        "worst": "\n".join(worst(rows, 15)),
        "memory": "\n".join(memory(path)),
        "verdicts": "\n".join(verdicts(path)),
        "ranking": "\n".join(ranking(table)),
        "crosswise": "\n".join(crosswise(table)),
        "one_row": "\n".join(one_row(table)),
        "interleaved": interleaved(),
        "curves": "\n".join(curves()),
        "chart": chart(),
        "efficiencies": "\n".join(efficiencies()),
        "skipped": f"{len(skipped)} of {len(table)}",
    }
    for name, value in parts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def main() -> None:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(description="Predicted against published steps.")
    parser.add_argument("rows", metavar="ROWS.csv")
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
