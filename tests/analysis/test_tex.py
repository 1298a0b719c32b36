"""What schedules are from: one record each, for the text that people read and for BibTeX."""

from __future__ import annotations

import re

import pytest

import debubble as db
from debubble.analysis.tex import bibliography, cited_by
from debubble.schedules import registry
from debubble.schedules.sources import SOURCES, keys_in, spelled_out

ENTRY = re.compile(r"@(\w+)\{([\w-]+),\n((?:  \w+ = \{.*\},\n)+)\}\n")


def entries(text: str) -> dict[str, dict[str, str]]:
    """Fields of every entry by its key."""
    return {
        key: dict(re.findall(r"  (\w+) = \{(.*)\},", fields)) | {"": kind}
        for kind, key, fields in ENTRY.findall(text)
    }


def test_every_schedule_refers_to_records_that_exist_and_all_are_used() -> None:
    used = set()
    for entry in registry.schedules():
        keys = cited_by(entry.name)
        assert keys, entry.name
        assert set(keys) <= set(SOURCES), entry.name
        assert "@" not in entry.source
        used |= set(keys)
    assert used == set(SOURCES)


def test_records_are_complete() -> None:
    numbers = [source.arxiv for source in SOURCES.values() if source.arxiv]
    assert len(set(numbers)) == len(numbers)
    for key, source in SOURCES.items():
        assert source.authors, key
        assert bool(source.place) != bool(source.venue or source.arxiv), key
        assert re.fullmatch(r"\d{4}\.\d{5}", source.arxiv or "2401.10241"), key
        if re.search(r"\d{4}", key):
            assert f"{source.year}" in key
        # No paper is older than its number on arXiv says.
        assert not source.arxiv or source.year >= 2000 + int(source.arxiv[:2]), key


def test_all_entries_are_bibtex_and_say_what_the_text_says() -> None:
    text = bibliography(entry.name for entry in registry.schedules())
    found = entries(text)
    assert set(found) == set(SOURCES)
    rest = ENTRY.sub("", text)
    assert all(line.startswith("% ") for line in rest.splitlines() if line)
    for key, fields in found.items():
        source = SOURCES[key]
        assert fields["title"] == f"{{{source.title}}}"
        assert fields["author"].split(" and ") == list(source.authors)
        assert fields.get("eprint", "") == source.arxiv
        assert fields[""] == ("inproceedings" if source.venue else "misc")
        assert source.title in source.text


def test_each_source_stands_once_whatever_the_order() -> None:
    text = bibliography(["zb-v", "zb-h1", "zb-v"])
    assert text == bibliography(["zb-h1", "zb-v"])
    assert list(entries(text)) == ["qi2024zero"]
    assert text.startswith("% zb-h1: qi2024zero\n% zb-v: qi2024zero\n\n@inproceedings{qi2024zero,")


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("@li2021chimera", "Li and Hoefler, Chimera: Efficiently Training Large-Scale Neural "
         "Networks with Bidirectional Pipelines, arXiv 2107.06925"),
        ("@llama2024herd, section 3.3",
         "Grattafiori et al., The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3"),
        ("as in @dualpipe dualpipev.py", "as in DeepSeek-AI, DualPipe, deepseek-ai/DualPipe "
         "dualpipev.py"),
        ("me@dualpipe.org, @nobody", "me@dualpipe.org, @nobody"),
    ],
)  # fmt: skip
def test_keys_are_spelled_out_and_other_words_stay(text: str, spelled: str) -> None:
    assert spelled_out(text) == spelled


def test_a_schedule_of_ones_own_has_an_entry_of_its_own() -> None:
    @db.register(
        "mine-1",
        title="50 % more",
        year=2026,
        source="A & B",
        placement=db.Placement.loop,
        chunks=1,
    )
    def mine(*, ranks, microbatches):
        raise NotImplementedError

    try:
        assert keys_in(registry.find("mine-1").cited) == []
        found = entries(bibliography(["mine-1", "gpipe"]))
    finally:
        registry._ENTRIES.pop("mine-1")
    assert found["mine-1"] == {
        "": "misc", "title": r"{mine-1: 50\,\% more}", "year": "2026", "note": r"A \& B",
    }  # fmt: skip
    assert cited_by("of a file") == []
