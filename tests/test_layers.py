"""The layers, as far as a linter of imports cannot see: in functions, and in strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import debubble

HOUSE = Path(debubble.__file__).parent
LAYERS = (
    {"core"}, {"engine"}, {"lowering"}, {"listing"}, {"schedules"}, {"analysis"},
    {"optimize", "interchange"}, {"torch", "runtime", "planner", "diagnosis"}, {"view"},
    {"playground"}, {"cli"},
)  # fmt: skip
"""Packages from the lowest layer up; those of one layer may know each other."""

FLOOR = {name: floor for floor, names in enumerate(LAYERS) for name in names}
MODULES = {
    ".".join(("debubble", *path.relative_to(HOUSE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(HOUSE.rglob("*.py"))
}


def docstrings(tree: ast.Module) -> set[int]:
    """The constants that document something, or stand for themselves behind what they document."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def named_by(module: str) -> Iterator[tuple[int, str]]:
    """Every module of the package that a module names, with the line: imports and strings."""
    tree = ast.parse(MODULES[module].read_text())
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in prose
            and re.fullmatch(r"debubble(\.\w+)+(:\w+)?\.?", node.value)
        ):
            yield node.lineno, node.value.rstrip(".").partition(":")[0]


def floor_of(module: str) -> int:
    parts = module.split(".")
    return FLOOR[parts[1]] if len(parts) > 1 and parts[1] in FLOOR else len(LAYERS)


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in HOUSE.glob("*/__init__.py")}
    assert packages <= set(FLOOR)
    assert len(MODULES) > 150


def test_no_module_names_one_of_a_higher_layer() -> None:
    upward = [
        f"{module}:{line} names {other}"
        for module in MODULES
        for line, other in named_by(module)
        if other.startswith("debubble.") and floor_of(other) > floor_of(module)
    ]
    assert upward == []
