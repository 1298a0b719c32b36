"""What pictures say about the numbers in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import debubble as db
from debubble.analysis.metrics import result_text
from debubble.core.actions import Kind
from debubble.engine.timeline import simulate
from debubble.view import captions
from tests.view.timelines import pairs, run, two_copies


def test_the_setting_counts_what_there_is():
    assert captions.setting(run("1f1b", 1, 1)) == "1 rank, 1 microbatch"
    assert (
        captions.setting(run("1f1b", 4, 8, iterations=3)) == "4 ranks, 8 microbatches, 3 iterations"
    )
    assert captions.setting(two_copies()) == "2 ranks, 2 microbatches, 2 copies of the model"
    timeline = run("interleaved-1f1b", 2, 4, chunks=2)
    assert captions.setting(timeline) == "2 ranks, 4 microbatches, 2 chunks"


def test_the_setting_says_what_recomputes():
    timeline = run("1f1b", 4, 8, recompute="full")
    assert captions.setting(timeline) == "4 ranks, 8 microbatches, full recompute"
    timeline = run("1f1b", 4, 8, recompute=[0, 1, 3], recompute_at="with-backward")
    assert captions.setting(timeline).endswith(", recompute on stages 0–1, 3")
    lines = captions.conventions([timeline])
    assert lines[-1] == (
        "recompute: stages 0–1, 3; R waits for the gradient, as its backward does, and counts as "
        "work"
    )
    assert lines[-2].endswith(
        "; if recomputed, 0 % is allocated when F starts, the rest when R starts"
    )


def test_the_result_names_every_number():
    assert result_text(run("1f1b", 4, 8)) == (
        "makespan 33, bubble ratio 27.27 %, peak activation 4"
    )
    assert result_text(run("1f1b", 4, 8), "ms").startswith("makespan 33 ms, ")


def test_conventions_are_said_once():
    lines = captions.conventions([run("1f1b", 2, 2), run("gpipe", 2, 2)])
    assert lines[0] == "times: per action: one stage, one microbatch"
    assert lines[1] == "p2p: transfers take no time"
    assert lines[2].startswith("bubble ratio: idle share of rank-time")
    assert lines[3].startswith("memory: activation units")
    assert len(lines) == 4


@pytest.mark.parametrize("mode", ["overlapped", "channel", "blocking"])
def test_conventions_say_what_transfers_do(mode):
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    timeline = simulate(schedule, db.Costs(p2p=0.5), mode)
    assert captions.conventions([timeline])[1].startswith(f"p2p {mode}: ")


def test_conventions_name_the_schedules_without_transfers_when_others_have_them():
    costly = simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(p2p=0.5))
    lines = captions.conventions([costly, run("gpipe", 2, 2)])
    assert "p2p: transfers take no time in gpipe" in lines


def test_conventions_of_rank_costs_name_the_divisor_only_when_it_is_one():
    costs = db.Costs.per_rank(F=2, B=4)
    one = simulate(db.make("1f1b", ranks=2, microbatches=4), costs)
    two = simulate(db.make("interleaved-1f1b", ranks=2, microbatches=4, chunks=2), costs)
    assert captions.conventions([two])[0] == "times: per rank ÷ 2 chunks"
    assert captions.conventions([one, two])[0] == "times: per rank ÷ chunks"


def test_shades_are_explained_when_there_are_several():
    assert captions.shades_note(pairs()) == ""
    chunked = run("interleaved-1f1b", 2, 4, chunks=2)
    assert captions.shades_note(chunked) == "light to dark: chunks 0–1"
    assert captions.shades_note(chunked, letters=True) == "lower case: odd chunks"
    assert captions.shades_note(two_copies()).startswith("light: copy 0")
    assert captions.shades_note(two_copies(), letters=True) == "lower case: copy 1"


def test_letters_change_case_with_the_shade():
    assert [captions.letter(Kind.F, index) for index in range(3)] == ["F", "f", "F"]
    assert captions.letter(Kind.OPT, 0) == "O"


def test_names_are_printable_and_not_too_long():
    schedule = db.make("1f1b", ranks=1, microbatches=1)
    assert captions.name(simulate(replace(schedule, name="a\u202eb\tc"))) == "a?b?c"
    assert captions.name(simulate(replace(schedule, name="n" * 99))) == "n" * 57 + "..."
