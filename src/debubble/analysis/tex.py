"""Texts for TeX and entries for BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable

from debubble.schedules import registry
from debubble.schedules.registry import Entry
from debubble.schedules.sources import SOURCES, Source, keys_in

SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "–": "--", "—": "---", "…": r"\dots{}", "\u00a0": "~", "−": "$-$", "×": r"$\times$",
    "÷": r"$\div$", "·": r"$\cdot$", "≤": r"$\le$", "≥": r"$\ge$", "≠": r"$\ne$", "±": r"$\pm$",
    "→": r"$\to$", "Σ": r"$\Sigma$", "µ": r"$\mu$", "μ": r"$\mu$", "²": r"$^2$", "³": r"$^3$",
}  # fmt: skip
"""Signs that mean something else to TeX, or that its usual fonts lack."""

_SIGN = re.compile("|".join(map(re.escape, SIGNS)))


def escape(text: str) -> str:
    """Escape a text for TeX, on one line; percentages stay with their numbers."""
    line = "".join(c if c.isprintable() or c in SIGNS else " " for c in text)
    return _SIGN.sub(lambda sign: SIGNS[sign[0]], line).replace(r" \%", r"\,\%")


def comment(text: str) -> str:
    """Return a text as lines of comment."""
    return "".join(f"% {line}".rstrip() + "\n" for line in text.splitlines() or [""])


def cited_by(name: str) -> list[str]:
    """Return keys of what a schedule is from; one of its own where it refers to no record.

    A schedule that is not registered, as one of a file, has none.
    """
    entry = registry.entries().get(name)
    if entry is None:
        return []
    return keys_in(entry.cited) or [_own_key(entry)]


def bibliography(names: Iterable[str]) -> str:
    """Return entries for BibTeX of all that some schedules are from, each once.

    Comments in front say which schedule cites what. Of the same names in another order the text is
    the same.
    """
    entries = {name: registry.find(name) for name in sorted(set(names))}
    lines = [comment(f"{name}: {', '.join(cited_by(name))}") for name in entries]
    records: dict[str, str] = {}
    for entry in entries.values():
        own = {key: bibtex(key, SOURCES[key]) for key in keys_in(entry.cited)}
        records |= own or {_own_key(entry): _own(entry)}
    return "".join([*lines, *(f"\n{records[key]}" for key in sorted(records))])


def bibtex(key: str, source: Source) -> str:
    """Return one record as an entry."""
    fields = {
        "title": f"{{{escape(source.title)}}}",
        "author": " and ".join(escape(n) if n[0] != "{" else n for n in source.authors),
        "booktitle": escape(source.venue),
        "year": str(source.year or ""),
        "eprint": source.arxiv,
        "archiveprefix": "arXiv" if source.arxiv else "",
        "howpublished": rf"\texttt{{{escape(source.place)}}}" if source.place else "",
    }
    return _entry("inproceedings" if source.venue else "misc", key, fields)


def _own(entry: Entry) -> str:
    """Return the entry of a schedule that refers to no record, as one that a user registered."""
    fields = {
        "title": f"{{{escape(f'{entry.name}: {entry.title}')}}}",
        "year": str(entry.year),
        "note": escape(entry.source),
    }
    return _entry("misc", _own_key(entry), fields)


def _own_key(entry: Entry) -> str:
    return re.sub(r"[^a-z0-9-]", "-", entry.name.lower())


def _entry(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = "".join(f"  {name} = {{{text}}},\n" for name, text in fields.items() if text)
    return f"@{kind}{{{key},\n{lines}}}\n"
