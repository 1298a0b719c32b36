"""Every ending gives a file that is what it says; everything else is a clear error."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ElementTree

import pytest

import debubble as db
from debubble.core.errors import ParameterError
from debubble.view.files import save
from tests.view.timelines import run

ENDINGS = (".png", ".svg", ".pdf", ".html", ".txt")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The content of a file of every kind, for two timelines."""
    folder = tmp_path_factory.mktemp("pictures")
    contents = {}
    for ending in ENDINGS:
        path = folder / f"out{ending}"
        save([run("1f1b", 2, 4), run("gpipe", 2, 4)], path, title="Compared")
        contents[ending] = path.read_bytes()
    return contents


@pytest.mark.slow
def test_png_is_a_picture_at_print_resolution(written):
    content = written[".png"]
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width == 11 * 300
    assert height > 400


@pytest.mark.slow
def test_svg_is_well_formed_with_text_as_text(written):
    root = ElementTree.fromstring(written[".svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Compared" in texts
    assert "1f1b" in texts
    assert texts.count("3") >= 8


def test_pdf_embeds_its_fonts_as_truetype(written):
    content = written[".pdf"]
    assert content.startswith(b"%PDF-")
    assert b"/CIDFontType2" in content
    assert b"/Type3" not in content


def test_html_is_a_page(written):
    assert written[".html"].startswith(b"<!doctype html>")
    assert b"<h1>Compared</h1>" in written[".html"]


def test_txt_holds_all_timelines_without_colors(written):
    text = written[".txt"].decode()
    assert text.startswith("Compared\n\n1f1b: 2 ranks, 4 microbatches\n")
    assert "\n\ngpipe: 2 ranks, 4 microbatches\n" in text
    assert "\x1b" not in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_pictures_are_equal_files(tmp_path, written, ending):
    path = tmp_path / f"again{ending}"
    save([run("1f1b", 2, 4), run("gpipe", 2, 4)], path, title="Compared")
    assert path.read_bytes() == written[ending]


def test_the_ending_may_be_in_upper_case(tmp_path):
    save([run("1f1b", 2, 2)], tmp_path / "OUT.SVG")
    assert b"<svg" in (tmp_path / "OUT.SVG").read_bytes()


@pytest.mark.parametrize("name", ["out.jpg", "out", "out.png.bak", ".png"])
def test_an_unknown_ending_names_the_known_ones(tmp_path, name):
    with pytest.raises(ParameterError, match=re.escape(".png, .svg, .pdf, .html, .txt")):
        save([run("1f1b", 2, 2)], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ParameterError, match=r"no folder '.*nowhere'; make it first"):
        save([run("1f1b", 2, 2)], tmp_path / "nowhere" / "out.png")


def test_a_path_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "out.txt").mkdir()
    with pytest.raises(ParameterError, match=r"cannot write '.*out\.txt': Is a directory"):
        save([run("1f1b", 2, 2)], tmp_path / "out.txt")


def test_an_unknown_option_names_the_nearest(tmp_path):
    with pytest.raises(ParameterError, match=r"\.svg picture has no option 'critcal'.*'critical'"):
        save([run("1f1b", 2, 2)], tmp_path / "out.svg", critcal=True)
    with pytest.raises(ParameterError, match=r"\.txt picture has no option 'limit'"):
        save([run("1f1b", 2, 2)], tmp_path / "out.txt", limit=3)


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="no timeline"):
        save([], tmp_path / "out.txt")


def test_options_reach_the_picture(tmp_path):
    save([run("1f1b", 2, 2)], tmp_path / "small.png", dpi=50)
    width, _ = struct.unpack(">II", (tmp_path / "small.png").read_bytes()[16:24])
    assert width == 11 * 50
    save([run("1f1b", 2, 2)], tmp_path / "narrow.txt", width=40, time_unit="ms")
    text = (tmp_path / "narrow.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 40
    assert "makespan 9 ms" in text
    save([run("1f1b", 2, 2)], tmp_path / "bare.svg", memory=False, labels=False)
    assert b"activation memory" not in (tmp_path / "bare.svg").read_bytes()


def test_a_timeline_saves_itself(tmp_path):
    run("1f1b", 2, 2).save(tmp_path / "mine.html", title="Mine", critical=True)
    assert "<h1>Mine</h1>" in (tmp_path / "mine.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_timeline_plots_itself():
    assert run("1f1b", 2, 2).plot(memory=True).get_xlim() == (0, 9)
    assert db.simulate(db.make("1f1b", ranks=1, microbatches=1)).plot().get_ylim() == (0.5, -0.5)


@pytest.mark.slow
def test_many_actions_make_a_small_vector_file(tmp_path):
    save([run("1f1b", 16, 4000)], tmp_path / "large.svg")
    assert (tmp_path / "large.svg").stat().st_size < 1_000_000
