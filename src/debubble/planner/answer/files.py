"""Files of a plan: costs for other commands, its schedule, and what its framework runs."""

from __future__ import annotations

from pathlib import Path

from debubble.core.errors import ParameterError
from debubble.interchange.files import save, write_text
from debubble.planner.answer.report import costs_yaml
from debubble.planner.answer.searches import also_runs, custom_order
from debubble.planner.frameworks.table import ANY, FRAMEWORKS, Framework, broken
from debubble.planner.frameworks.torch.flags import CSV, from_csv
from debubble.planner.search.evaluate import Evaluated

COSTS = (".yaml", ".yml")
"""Endings of files with costs, unless their name is a framework's."""

ENDINGS = (*COSTS, ".csv", *dict.fromkeys(end for row in FRAMEWORKS.values() for end in row.files))
"""Endings of all files that a plan is written to."""


def check_name(
    path: str, framework: str | None = None, more: str = "", maker: str | None = None
) -> None:
    """Refuse the name of a file that no plan is written to, or none for a framework or GPU.

    `more` are other files in words, and `maker` that of the GPU.
    """
    named, ending = named_framework(path), _ending(path)
    row = named or FRAMEWORKS.get(framework or "")
    if ending not in ENDINGS:
        raise ParameterError(f"'{path}': {more}{advice()}")
    if named is None and ending in (*COSTS, ".csv"):
        return
    if row is not None and ending not in row.files:
        raise ParameterError(f"'{path}': {row.title} is not run from {ending}; {_nearest(row)}")
    if named is not None and maker is not None and maker not in named.makers:
        other = next(one for one in FRAMEWORKS.values() if maker in one.makers)
        raise ParameterError(
            f"'{path}': {named.title} is not for {maker}'s GPUs; {_nearest(other)} for "
            f"{other.title}"
        )
    if (framework or "").strip().lower() == ANY:
        able = [name for name, one in FRAMEWORKS.items() if ending in one.files]
        names = [named.name] if named else able
        raise ParameterError(
            f"'{path}': a plan for any framework is checked for none, nor is its memory; the "
            f"nearest that works is --framework {' or '.join(names)}"
        )


def advice() -> str:
    """Return the files that there are, by ending."""
    own = "; ".join(
        f"{' or '.join(row.files)} for {row.title}"
        for row in FRAMEWORKS.values() if not {*row.files} & {*COSTS}
    )  # fmt: skip
    named = " and ".join(
        f"{name}.yaml" for name, row in FRAMEWORKS.items() if {*row.files} & {*COSTS}
    )
    return f"costs are .yaml, a schedule is .csv; a plan to run is {own}, {named}"


def write_plan(plan: Evaluated, path: str) -> list[str]:
    """Write a plan to a file by its name, and return the names of all files written.

    A schedule that the framework takes from a file is written next to it.
    """
    ending, row = _ending(path), named_framework(path)
    if ending == ".csv":
        save(plan.simulate().schedule, path)
        return [path]
    if ending in COSTS and row is None:
        write_text(path, costs_yaml(plan))
        return [path]
    case, row = plan.case, row or _runner(plan, ending)
    if problems := broken(case, row.name):
        first = next(iter(problems.values()))
        raise ParameterError(f"'{path}': {row.title} does not run this plan: {first}")
    written = [path]
    if custom_order(plan, row.name):
        written.append(str(Path(path).with_name(CSV)))
        save(plan.simulate().schedule, written[-1])
    write_text(path, row.files[ending](from_csv(case) if plan.optimized else case))
    return written


def named_framework(path: str) -> Framework | None:
    """Return the framework that a file is named for, such as ``run.automodel.yaml``."""
    return FRAMEWORKS.get(Path(path).stem.rpartition(".")[2].lower())


def _runner(plan: Evaluated, ending: str) -> Framework:
    """Return the framework of a plan, or another one that runs it from files of an ending."""
    own = FRAMEWORKS[plan.request.fixed.framework or ""]
    rows = [own, *(FRAMEWORKS[name] for name in also_runs(plan))]
    able = [row for row in rows if ending in row.files and not broken(plan.case, row.name)]
    if able:
        return able[0]
    others = [name for name, row in FRAMEWORKS.items() if ending in row.files]
    raise ParameterError(
        f"the plan is for {own.title}, which is not run from {ending}; {_nearest(own)}, or a plan "
        f"with --framework {' or '.join(others)}"
    )


def run_names(framework: str | None) -> list[str]:
    """Return names for the files from which a framework runs a plan; none without a framework."""
    row = FRAMEWORKS.get(framework or "")
    return (
        [f"{row.name}{end}" if end in COSTS else f"plan{end}" for end in row.files] if row else []
    )


def _nearest(row: Framework) -> str:
    return f"the nearest that works is {' or '.join(run_names(row.name))}"


def _ending(path: str) -> str:
    return Path(path).suffix.lower()
