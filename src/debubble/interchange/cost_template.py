"""A cost file to fill in, and the reference of its keys; both from the schema."""

from __future__ import annotations

import textwrap

from debubble.core.cost_fields import SHAPES, CostField
from debubble.interchange.cost_model import FileKey, keys_of

SECTIONS = ("", "times", "memory")
"""Sections of a cost file; the first is the file itself."""

ACTIVE = {
    "": {"name": "my model", "ranks": "8", "microbatches": "32", "basis": "rank",
         "time_unit": "ms"},
    "times": {"F": "10.0", "I": "10.0", "W": "8.0", "p2p": "0.2"},
    "memory": {"limit": "8"},
}  # fmt: skip
"""Keys with values in the template; every other key is in a comment."""

HEADER = """\
# What the actions of a model cost on a cluster. Use it with
#
#     debubble compare 1f1b interleaved-1f1b zb-h1 zb-v --costs FILE
#
# Only times must be there. A key after a '#' shows what else there is: take the '#' away to use
# it. Most costs may also be lists with one value per stage, F: [10, 10, 12, 11], or have values of
# their own for some stages, F: {default: 10, 2: 12}; with the basis rank, of ranks. 'debubble
# costs' says what each key takes, and 'debubble costs FILE' checks this file.
"""

_COLUMN, _WIDTH = 36, 100


def template() -> str:
    """Return a cost file in YAML that works as it is, with a comment for every key."""
    blocks = [HEADER]
    for section in SECTIONS:
        lines = [f"{section}:"] if section else []
        for key, spec in keys_of(section).items():
            if key in SECTIONS:
                continue
            value = ACTIVE[section].get(key)
            entry = f"{key}: {spec.example}" if value is None else f"{key}: {value}"
            mark = "# " if value is None else ""
            lines.append(_commented(f"{'  ' if section else ''}{mark}{entry}", spec.text))
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _commented(line: str, text: str) -> str:
    """Return a line with a comment, wrapped to further lines where it is long."""
    first, *rest = textwrap.wrap(text, _WIDTH - _COLUMN - 2)
    return "\n".join(
        [f"{line:<{_COLUMN}}# {first}", *(f"{'':<{_COLUMN}}# {more}" for more in rest)]
    )


def _shape(spec: FileKey | CostField) -> str:
    if isinstance(spec, FileKey):
        return spec.shape
    return SHAPES[spec.shape].replace("number", "share") if spec.share else SHAPES[spec.shape]


def key_reference(section: str) -> list[tuple[str, str, str]]:
    """Return key, shape of the value and meaning of all keys of a section."""
    return [(key, _shape(spec), spec.text) for key, spec in keys_of(section).items()]
