"""Tables for LaTeX: the numbers of the comparison, complete, and with signs that TeX takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import debubble as db
from debubble.analysis.tex import SIGNS, comment, escape
from debubble.view.latex import table


@pytest.fixture(scope="module")
def comparison() -> db.Comparison:
    return db.compare(
        ["1f1b", "zb-h1", "zb-v"], ranks=4, microbatches=8, memory=4,
        costs=db.Costs.per_rank(F=2.5, I=3, W=2, p2p=0.25), time_unit="ms",
    )  # fmt: skip


def parsed(text: str) -> list[list[str]]:
    """Cells of the table, line by line."""
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
    lines = [line.strip() for line in body.strip().splitlines() if line.strip()]
    assert all(line.endswith(r"\\") for line in lines)
    return [[cell.strip() for cell in line[:-2].split("&")] for line in lines]


def balanced(text: str) -> bool:
    """Whether braces and environments close in order, outside of comments and escaped signs."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    code = re.sub(r"\\[\\{}%&$#_]", "", code)
    opened = []
    for begin, end, brace in re.findall(r"\\begin\{(\w+)\}|\\end\{(\w+)\}|([{}])", code):
        if begin or brace == "{":
            opened.append(begin or "{")
        elif not opened or opened.pop() != (end or "{"):
            return False
    return (
        not opened
        and code.count("$") % 2 == 0
        and not re.search(r"[&%#]", code.split("toprule")[0])
    )


def test_the_table_has_the_numbers_of_the_comparison(comparison: db.Comparison) -> None:
    text = table(comparison)
    assert balanced(text)
    head, *rows = parsed(text)
    assert head == ["Schedule", "{Time (ms)}", "{/ best}", r"{Bubble (\%)}", "{Peak}",
                    "{Within memory}"]  # fmt: skip
    assert [row[0] for row in rows] == [row.name for row in comparison.rows]
    for row, cells in zip(comparison.rows, rows, strict=True):
        assert float(cells[1]) == pytest.approx(row.makespan)
        assert float(cells[3]) == pytest.approx(100 * row.bubble_ratio, abs=0.005)
        assert cells[-1] == ("{yes}" if row.fits else "{no}")


def test_numbers_are_aligned_at_the_decimal_point(comparison: db.Comparison) -> None:
    text = table(comparison)
    formats = re.findall(r"S\[table-format=(\d+)\.(\d+)\]", text)
    _, *rows = parsed(text)
    for place, (before, after) in enumerate(formats, 1):
        for row in rows:
            whole, _, rest = row[place].partition(".")
            assert len(whole) <= int(before)
            assert len(rest) <= int(after)


def test_the_caption_has_at_most_25_words(comparison: db.Comparison) -> None:
    caption = table(comparison).split(r"\caption{")[1].split("}\n")[0]
    assert caption == (
        "Simulated schedules on 4 ranks with 8 microbatches. Times: F 2.5 ms, I 3 ms, W 2 ms, p2p "
        "0.25 ms."
    )
    assert r"\caption{Mine.}" in table(comparison, title="Mine.")
    costs = db.Costs(F=1, I=1, W=1, R=1, O=1, p2p=1, launch=1, OPT=1, reduce_grad=1, unshard=1)
    long = db.compare(["gpipe"], ranks=2, microbatches=4, costs=costs)
    caption = table(long).split(r"\caption{")[1].split("}\n")[0]
    assert caption == "Simulated schedules on 2 ranks with 4 microbatches."


def test_conventions_stand_in_comments(comparison: db.Comparison) -> None:
    text = table(comparison, source="Model_1 & co").split(r"\begin")[0]
    assert "% source of the costs: Model_1 & co\n" in text
    assert "% times: F 2.5 ms, I 3 ms, W 2 ms, p2p 0.25 ms; per rank" in text
    assert "% memory limit: 4 activation units\n" in text
    assert "% p2p: overlapped: " in text
    uneven = db.compare(["gpipe"], ranks=2, microbatches=4, costs=db.Costs(F=[1, 2], B=3))
    assert "% times: B 3, F of their own for stages" in table(uneven)
    equal = table(db.compare(["gpipe", "1f1b"], ranks=2, microbatches=4))
    assert "% times: F, I and W take 1 each" in equal


def test_labels_stand_in_place_of_names(comparison: db.Comparison) -> None:
    text = table(comparison, label={"zb-v": "ZB-V (ours)"}, cite=True)
    assert r"ZB-V (ours)~\cite{qi2024zero}" in text


def test_names_are_followed_by_citations_if_asked_for(comparison: db.Comparison) -> None:
    cells = parsed(table(comparison, cite=True))
    names = {cell[0] for cell in cells[1:]}
    assert r"zb-v~\cite{qi2024zero}" in names
    assert r"1f1b~\cite{fan2021dapple,narayanan2021memory}" in names


def test_a_file_of_its_own_has_no_citation() -> None:
    own = db.Schedule.from_text([["0F0", "0B0"]], db.Placement.loop(1, 1), 1, "mine_50%")
    text = table(db.compare([own, "gpipe"], ranks=1, microbatches=1), cite=True)
    assert balanced(text)
    assert {row[0] for row in parsed(text)[1:]} == {r"mine\_50\%", r"gpipe~\cite{huang2019gpipe}"}


def test_how_it_was_made_stands_in_comments(comparison: db.Comparison) -> None:
    lines = table(comparison).split(r"\begin")[0].splitlines()
    assert all(line.startswith("% ") for line in lines)
    assert lines[0].startswith(f"% versions: debubble {db.__version__}, Python ")
    assert any('"F": 2.5' in line for line in lines)
    assert lines[-1].endswith(r"\usepackage{booktabs, siunitx}.")


def test_saved_by_its_ending(comparison: db.Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path / "t.tex", cite=True)
    assert (tmp_path / "t.tex").read_text(encoding="utf-8") == table(comparison, cite=True)
    with pytest.raises(db.ParameterError, match="no option 'width'"):
        comparison.save(tmp_path / "t.tex", width=3)
    with pytest.raises(db.ParameterError, match="no table to write"):
        db.compare(["chimera"], ranks=3, microbatches=6).save(tmp_path / "t.tex")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("100 % of a_b & c", r"100\,\% of a\_b \& c"),
        (r"\input{x} $y$ #1 ~ ^", r"\textbackslash{}input\{x\} \$y\$ \#1 \textasciitilde{} "
         r"\textasciicircum{}"),
        ("1 − Σ ≤ 2 × µs", r"1 $-$ $\Sigma$ $\le$ 2 $\times$ $\mu$s"),
        ("two\nlines", "two lines"),
    ],
)  # fmt: skip
def test_signs_of_tex_are_escaped(text: str, wanted: str) -> None:
    assert escape(text) == wanted


def test_no_sign_of_tex_comes_through() -> None:
    for sign in SIGNS:
        assert "\n" not in escape(sign)
        assert re.fullmatch(r"\\[\W_]|\\[a-z]+\{\}|\$.*\$|-+|~|''", escape(sign)), sign


def test_a_comment_never_ends_early() -> None:
    for end in ("\n", "\r", "\x0b", "\x0c", "\x85", "\u2028"):
        assert comment(f"a{end}\\input{{b}}") == "% a\n% \\input{b}\n"
