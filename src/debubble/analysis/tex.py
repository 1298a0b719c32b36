"""Texts for TeX and entries for BibTeX."""

from __future__ import annotations

import re

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
