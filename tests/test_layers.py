"""Layers, privacy and cycles, where a linter of imports does not look: functions and strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tests.source import SOURCE, nodes, together

pytestmark = together

LAYERS = (
    {"_version", "core"}, {"engine"}, {"lowering"}, {"listing"}, {"schedules"}, {"analysis"},
    {"optimize", "interchange"}, {"torch", "planner", "diagnosis"}, {"megatron"}, {"sweeps"},
    {"view"}, {"playground"}, {"cli"},
)  # fmt: skip
"""Packages from the lowest layer up; those of one layer may know each other. The front door,
``debubble`` itself, is on the floor of the command line."""

FLOOR = {name: floor for floor, names in enumerate(LAYERS) for name in names}
MODULES = {
    ".".join(("debubble", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def docstrings(found: Iterable[ast.AST]) -> set[int]:
    """The constants that document something, or stand for themselves behind what they document."""
    return {
        id(node.value)
        for node in found
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def typing_only(found: Iterable[ast.AST]) -> set[int]:
    """Nodes that no running program sees, because they stand under ``TYPE_CHECKING``."""
    return {
        id(node)
        for block in found
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }


@cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    """All imports and strings of a module; of the latter none that documents something."""
    found = nodes(MODULES[module])
    left_out = docstrings(found)
    return tuple(
        node
        for node in found
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Constant) and id(node) not in left_out
    )


def named_by(module: str, running: bool = False) -> Iterator[tuple[int, str]]:
    """Every module of the package that a module names, with the line: imports and strings.

    Those that a program names while it is `running`, or also those of types alone.
    """
    left_out = typing_only(nodes(MODULES[module])) if running else set()
    for node in nodes_of(module):
        if id(node) in left_out:
            continue
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
            and re.fullmatch(r"debubble(\.\w+)+(:\w+)?\.?", node.value)
        ):
            yield node.lineno, node.value.rstrip(".").partition(":")[0]


def floor_of(module: str) -> int:
    parts = module.split(".")
    return FLOOR.get(parts[1], len(LAYERS)) if len(parts) > 1 else FLOOR["cli"]


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(FLOOR)
    assert len(MODULES) > 150


def test_no_module_names_one_of_a_higher_layer() -> None:
    upward = [
        f"{module}:{line} names {other}"
        for module in MODULES
        for line, other in named_by(module)
        if other.partition(".")[0] == "debubble" and floor_of(other) > floor_of(module)
    ]
    assert upward == []


def private_to(name: str) -> tuple[str, str]:
    """The package that an imported name is private to, and what is private; empty if nothing is."""
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if re.match(r"_(?!_)", part):
            home = ".".join(parts[:depth])
            package = home if MODULES[home].name == "__init__.py" else home.rpartition(".")[0]
            return package, f"{home}.{part}"
    return "", ""


def test_what_is_private_is_imported_in_its_own_package_only() -> None:
    imported = [
        (module, *private_to(f"{node.module}.{alias.name}"))
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("debubble")
        for alias in node.names
    ]
    private = {(module, package, name) for module, package, name in imported if name}
    assert len(private) > 20
    strangers = {
        (module, name)
        for module, package, name in private
        if not f"{module}.".startswith(f"{package}.")
    }
    assert not strangers


def cycles_of(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Modules that reach each other over imports, as sets of two and more."""
    reached = {module: set(others) for module, others in graph.items()}
    for middle in graph:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert cycles_of(graph) == {frozenset("bc")}


@pytest.mark.parametrize(
    "package", ["core", "engine", "lowering", "listing", "schedules", "analysis", "optimize"]
)
def test_no_module_imports_itself_over_others(package: str) -> None:
    inside = [name for name in MODULES if name.startswith(f"debubble.{package}.")]
    graph = {
        module: {other for _, other in named_by(module, running=True) if other in inside}
        for module in inside
    }
    assert any(graph.values())
    assert not cycles_of(graph)
