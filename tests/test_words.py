"""Words, names and sizes of the source, so that a newcomer can read it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import debubble
from tests.source import SOURCE, modules, nodes, together

pytestmark = together

RIDDLES = re.compile(r"(What|Who|Whose|Which|Where|When|Why|How|The same)\b")
"""Beginnings of texts that stand in place of a verb or a noun."""

DIALECT = re.compile(
    r"\b(told|tells|beside|whoever|nobody|colour|favour|behaviour|neighbour|modell(?:ed|ing)"
    r"|labell(?:ed|ing)|(?:optimi|recogni|initiali|synchroni|seriali|summari)s(?:e|ed|es|ing"
    r"|ation))\b",
    re.IGNORECASE,
)
"""Words that have a plainer one, and British spellings."""

LONGEST, MOST = 120, 14
"""Lines and parameters of a function; a public one may have more options."""

LONGEST_MODULE = 500

TWO_MEANINGS = {"Problem"}
"""Classes of one name: a problem that a check finds, and one that a search solves."""

Text = tuple[str, str]
"""A docstring's place, and the docstring."""


def texts() -> Iterator[Text]:
    """Docstrings of modules, classes, functions, attributes and constants."""
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", text.strip()


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def test_texts_start_with_a_verb_or_a_noun() -> None:
    assert [f"{place} {text[:60]}" for place, text in texts() if RIDDLES.match(text)] == []


def test_functions_say_what_they_return_and_not_whether() -> None:
    found = ((place, ast.get_docstring(node) or "") for place, node in functions())
    assert [place for place, text in found if text.startswith("Whether ")] == []


def test_texts_are_in_plain_american_english() -> None:
    found = ((place, DIALECT.search(text)) for place, text in texts())
    assert [f"{place} {match[0]}" for place, match in found if match] == []


def test_a_class_is_defined_once() -> None:
    where = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(SOURCE)))
    assert {name for name, paths in where.items() if len(paths) > 1} <= TWO_MEANINGS


def test_a_module_gives_a_name_to_one_constant() -> None:
    """A second one would change what functions read that were written for the first."""
    for path, tree in modules().items():
        names = [
            name.id
            for statement in tree.body
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            for name in ast.walk(statement)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            if name.id.isupper()
        ]
        assert len(names) == len(set(names)), (path, sorted(names))


def test_functions_and_modules_have_a_size_to_read() -> None:
    public = set(debubble.__all__)
    long = []
    for place, node in functions():
        assert node.end_lineno is not None
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        if node.end_lineno - node.lineno >= LONGEST:
            long.append(place)
        if len(arguments) > MOST and node.name not in public:
            long.append(f"{place}: {len(arguments)} parameters")
    assert long == []
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in modules()}
    assert [str(path) for path, count in lines.items() if count > LONGEST_MODULE] == []
