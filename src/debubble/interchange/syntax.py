"""YAML, JSON and TOML as plain data: nothing executed, no key twice, bounded nesting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from debubble.core.errors import FormatError
from debubble.interchange.schedule_json import parse_json
from debubble.interchange.text import plain, shown

if TYPE_CHECKING:
    from yaml.nodes import MappingNode

MAX_DEPTH = 20
"""Maximum nesting of lists and mappings."""

_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*\.[ \t]*){20}""")
"""The beginning of a key with more than :data:`MAX_DEPTH` parts."""


def parse(text: str, where: str) -> Any:
    """Parse the data in a file; the ending of its name gives the language.

    Raises FormatError when the text breaks the rules of its language, repeats a key, or uses YAML's
    anchors, aliases or tags; with line and column where the parser knows them.
    """
    ending = where.lower().rpartition(".")[2]
    if ending == "json":
        return parse_json(text, where)
    if ending == "toml":
        return _parse_toml(text, where)
    if ending in ("yaml", "yml"):
        return _parse_yaml(text, where)
    raise FormatError(f"'{where}' is no cost file; they end in .yaml, .json or .toml")


def yaml_text(data: Any) -> str:
    """Return plain data as YAML; lists of numbers are on one line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_sequence(self, tag: str, sequence: Any, flow_style: Any = None) -> Any:
            node = super().represent_sequence(tag, sequence, flow_style)
            node.flow_style = not any(isinstance(item, str) for item in sequence)
            return node

    text: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=100,
        allow_unicode=True,
    )  # fmt: skip
    return text


def _parse_toml(text: str, where: str) -> Any:
    import tomllib

    # Thousands of parts take the parser more than quadratic time; costs need two.
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise FormatError(f"{where}, line {line}: a key has more than {MAX_DEPTH} parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{where}: not TOML: {plain(str(error))}") from None
    except RecursionError:
        raise FormatError(f"{where}: lists or mappings are nested too deeply") from None
    except ValueError:
        raise FormatError(f"{where}: a number has too many digits") from None


def _parse_yaml(text: str, where: str) -> Any:
    import yaml

    try:
        _refuse_references(text, where)
        return yaml.load(text, Loader=_loader())
    except FormatError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise FormatError(f"{where}{place}: {plain(error.problem or 'not YAML')}") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{where}: not YAML: {plain(str(error))}") from None
    except ValueError:
        raise FormatError(f"{where}: a number has too many digits") from None


def _refuse_references(text: str, where: str) -> None:
    """Refuse anchors, tags and deep nesting in the parser's events, before data is made of them."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise FormatError(
                f"{where}, line {line}: anchors and aliases are not allowed; write the value out"
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise FormatError(f"{where}, line {line}: tags such as {shown(tag)} are refused")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise FormatError(
                f"{where}, line {line}: lists or mappings are nested more than {MAX_DEPTH} deep"
            )


def _loader() -> Any:
    """Make a safe loader with the scalars of YAML 1.2: ``1e-3`` is a number and ``no`` a text."""
    import yaml
    from yaml.constructor import ConstructorError

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the library's way to say it

        def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise ConstructorError(None, None, "a key is a list", key_node.start_mark)
                key = self.construct_object(key_node, deep=True)
                if key in found:
                    problem = f"the key {shown(str(key))} is there twice; remove one"
                    raise ConstructorError(None, None, problem, key_node.start_mark)
                found[key] = self.construct_object(value_node, deep=deep)
            return found

        def construct_int(self, node: Any) -> int:
            return int(self.construct_scalar(node))

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_int)
    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?[0-9]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ):
        Loader.add_implicit_resolver(
            f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first)
        )
    return Loader
