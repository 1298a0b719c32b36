"""Files for BibTeX with what schedules are from."""

from __future__ import annotations

from collections.abc import Iterable

from debubble.cli.output import check_writable, note
from debubble.core.errors import FormatError


def check_bibtex(path: str | None) -> None:
    """Refuse a file that could not be written in the end, before anything is computed."""
    if path is None:
        return
    if not path.lower().endswith(".bib"):
        raise FormatError(f"--bibtex '{path}': a bibliography is written as .bib")
    check_writable(path)


def write_bibtex(names: Iterable[str], path: str) -> None:
    """Write the entries of all schedules that are registered; those of files have none."""
    from debubble.analysis.bibliography import bibliography
    from debubble.interchange.files import write_text
    from debubble.schedules import registry

    known = registry.entries()
    write_text(path, bibliography(name for name in names if name in known))
    note(f"wrote {path}")
