"""The source of the package, parsed once for all tests that read it.

They carry `together`, so that one worker of a run parses it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import debubble

SOURCE = Path(debubble.__file__).parent
together = pytest.mark.xdist_group("source")


@cache
def modules() -> dict[Path, ast.Module]:
    """The modules by their files."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))
    }


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module."""
    return tuple(ast.walk(modules()[path]))
