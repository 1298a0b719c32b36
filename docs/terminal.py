"""Commands and their output: the site shows them apart, so that copying takes commands alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

PROGRAM = re.compile(
    r"(\$ )?(debubble|make|pip|uv|uvx|git|python3?|torchrun|sqlite3|cd|export|\.) "
)
"""What a line begins with that is typed; other lines of a block are printed by it."""

_COMMANDS = re.compile(r'<div class="language-sh highlight">.*?</div>', re.S)
_HYPHENATED = re.compile(r"[^\s-]*-\S+")
SHORT = 24
"""Characters of a word that fits into a line of a phone."""

_FENCED = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)((?:^    [^\n]*\n|^\n(?=    ))+)", re.M)


def apart(page: str) -> str:
    """Return a page whose blocks for a shell have commands and output in blocks of their own."""
    page = _FENCED.sub(lambda found: "\n".join(_blocks(found[1])), page)
    return _INDENTED.sub(_fenced, page)


def with_whole_words(page: str) -> str:
    """Return the HTML of a page whose commands and code do not break at hyphens of short words.

    Nor do numbers in tables before their unit.
    """

    def marked(block: re.Match[str]) -> str:
        return re.sub(r"(?<=>)[^<]+", lambda text: _HYPHENATED.sub(whole, text[0]), block[0])

    def whole(found: re.Match[str]) -> str:
        return f'<span class="whole">{found[0]}</span>' if len(found[0]) <= SHORT else found[0]

    page = re.sub(r"<td>(?=[−+\d.,]+ [%a-z]{1,2}</td>)", '<td class="whole">', page)
    page = re.sub(rf"<code>(?=[^<]{{1,{SHORT}}}</code>)", '<code class="whole">', page)
    return _COMMANDS.sub(marked, page)


def _fenced(found: re.Match[str]) -> str:
    """Return an indented block as fenced ones if it begins with a command."""
    text = re.sub(r"(?m)^    ", "", found[1])
    return "\n".join([*_blocks(text), ""]) if PROGRAM.match(text) else found[0]


def _blocks(text: str) -> Iterator[str]:
    """Yield the lines of a block as fences; output has no button that copies it."""
    typed: bool | None = None
    goes_on = False
    for line in text.rstrip("\n").splitlines():
        is_typed = goes_on or bool(PROGRAM.match(line)) or (typed is None)
        if is_typed != typed:
            yield from [] if typed is None else ["```", ""]
            yield "```sh" if is_typed else "``` { .text .no-copy .printed }"
        typed = is_typed
        goes_on = typed and line.endswith("\\")
        yield line.removeprefix("$ ") if typed else line
    yield "```"
