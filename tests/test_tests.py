"""Tests can fail: each asserts whichever way it goes; each folder has quick ones; limits grow."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import LAWS, QUICK

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))

ASSERTING = {
    "raises", "warns", "assert_allclose", "assert_array_equal", "assert_close",
    "assert_outcomes",  # of pytester
    "accepts",  # fuzz/readers.py: what it does not let through is a failure
    "assert_explained",  # engine/test_explain.py
    "assert_as_alone",  # torch/test_train_examples.py
    "assert_closed",  # diagnosis/test_account.py
    "assert_named", "assert_true",  # diagnosis/test_planted.py
    "in_ranks",  # torch/ranks/world.py: what ranks assert fails the test
    "check_timeline", "check_drawn", "check_mode",  # engine/agreement.py
    "compare",  # gradients in torch/run/test_verify.py
    "equals_the_oracle",  # engine/test_laws.py
    "the_same",  # laws/test_self.py
    "never_longer",  # laws/test_monotone_in_plans.py
    "agrees",  # laws/test_self_in_searches.py, optimize/test_lengths_by_hand.py
    "settle",  # waits for a state of the page, and fails without
    "verified",  # runs a schedule and compares its gradients
    "_interrupted_search",  # optimize/test_optimize.py
}  # fmt: skip
"""Calls that assert: of libraries, and our own helpers."""


def asserts(node: ast.AST) -> bool:
    """Whether a statement or expression asserts, wherever in it."""
    return any(
        isinstance(part, ast.Assert)
        or (isinstance(part, ast.Call) and ast.unparse(part.func).split(".")[-1] in ASSERTING)
        for part in ast.walk(node)
    )


def filters(node: ast.expr | None) -> bool:
    """Whether an expression leaves some things out, and so may leave out all."""
    return any(comprehension.ifs for comprehension in getattr(node, "generators", []))


def idle(body: Sequence[ast.stmt]) -> bool:
    """Whether statements can be gone through without asserting anything."""
    left, sure = _through(body, False)
    return left or not sure


def _through(body: Sequence[ast.stmt], sure: bool) -> tuple[bool, bool]:
    """Whether a test may return here before it has asserted, and whether it has at the end.

    A loop counts for one that is gone through, unless it is over what a filter has left.
    """
    left = False
    filtered: set[str] = set()
    for statement in body:
        match statement:
            case ast.Return():
                return left or (not sure and not asserts(statement)), True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                ways = [(False, sure)]
            case ast.For(iter=over):
                gone, after = _through(statement.body, sure)
                maybe = filters(over) or ast.unparse(over) in filtered
                ways = [(gone, sure if maybe else after)]
            case ast.While():
                ways = [(_through(statement.body, sure)[0], sure)]
            case ast.If():
                ways = [_through(way, sure) for way in (statement.body, statement.orelse)]
            case ast.With():
                sure = sure or any(map(asserts, statement.items))
                ways = [_through(statement.body, sure)]
            case ast.Try():
                tried = [*statement.body, *statement.orelse, *statement.finalbody]
                caught = [[*each.body, *statement.finalbody] for each in statement.handlers]
                ways = [_through(way, sure) for way in (tried, *caught)]
            case _:
                ways = [(False, sure or asserts(statement))]
        left = left or any(gone for gone, _ in ways)
        sure = all(after for _, after in ways)
        if isinstance(statement, ast.Assign) and filters(statement.value):
            filtered.update(ast.unparse(target) for target in statement.targets)
    return left, sure


def written_in(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


@pytest.mark.slow
def test_every_test_asserts_whichever_way_it_goes() -> None:
    assert len(FILES) > 100
    silent = [
        f"{path.relative_to(TESTS)}:{test.lineno} {test.name}"
        for path in FILES
        for test in written_in(path)
        if idle(test.body)
    ]
    assert silent == []


LIMITED = (".communicate", ".create_connection", ".wait", ".join", ".AsyncClient", "subprocess.run")
"""Calls that wait, no longer than a limit that they are given."""

AT_MOST = 1.0
"""Seconds that a test may wait for what it does not expect."""


def fixed_limits(path: Path) -> Iterator[str]:
    """Waits whose limit is a number of seconds: a busy machine takes longer."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(LIMITED):
            named = [word.value for word in node.keywords if word.arg == "timeout"]
            for limit in [*named, *node.args]:
                if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float):
                    fixed = limit.value > AT_MOST
                else:
                    fixed = limit in named and isinstance(limit, ast.Name) and limit.id.isupper()
                if fixed:
                    yield f"{path.relative_to(TESTS)}:{node.lineno} {ast.unparse(limit)}"


@pytest.mark.slow
def test_limits_of_waits_grow_with_the_load() -> None:
    paths = set(TESTS.rglob("*.py")) - {TESTS / "packages.py"}  # no test
    assert [line for path in sorted(paths) for line in fixed_limits(path)] == []


def test_every_folder_has_tests_for_every_edit(request: pytest.FixtureRequest) -> None:
    """``make quick`` leaves out browsers, processes and what is slow, but no folder except laws."""
    quick = request.config.stash[QUICK]
    assert quick[Path(__file__)]
    slow = []
    for folder in {path.parent for path in FILES} - {LAWS}:
        files = [path for path in FILES if path.parent == folder]
        # Where only some files were asked for, nothing is known of the others.
        if quick.keys() >= set(files) and not any(quick[path] for path in files):
            slow.append(folder.name)
    assert slow == []


@pytest.mark.xdist_group("kept")
def test_workers_keep_groups_of_tests_together(request: pytest.FixtureRequest) -> None:
    """Else every worker starts the servers, browsers and ranks of a file again."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@kept")
