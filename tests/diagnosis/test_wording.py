"""Words of findings: the machine they name, advice that fits the run, and precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from debubble.diagnosis import wording
from debubble.diagnosis.account import CAUSES
from debubble.diagnosis.candidates import Cause, Where
from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.findings import Finding
from debubble.diagnosis.machines import Machines
from debubble.diagnosis.observed import Location, Observed
from debubble.diagnosis.report import (
    headline,
    longer_than_observed,
    not_traced,
    report,
)
from debubble.diagnosis.run import Run
from debubble.diagnosis.what_if import with_changes
from tests.diagnosis.diagnosed import of_planted, plain
from tests.diagnosis.made import Made, one_f_one_b
from tests.diagnosis.planted import PLANTED

INHERENT = {"fill", "drain", "peer"}
"""Causes that are no finding."""


def on_machines(observed: Observed, hosts: int = 2) -> Observed:
    """A run of which each rank has a global rank, a host and a file."""
    workers = range(observed.ranks * observed.copies)
    return replace(observed, locations=tuple(
        Location(100 + at, f"node{at % hosts}", f"rank{100 + at}.json") for at in workers
    ))  # fmt: skip


def cause(name: str, where: Where) -> Cause:
    return Cause(name, where, np.ones(1), np.ones(1), 1.5)


def texts(name: str, where: Where, run: Run) -> str:
    words = wording.words_of(wording.CauseInRun(cause(name, where), run, Machines.of(run)))
    return f"{words.subject}. {words.description}. {words.advice}"


@pytest.fixture(scope="module")
def worker() -> Diagnosis:
    """A run on known machines with one slow rank of one copy."""
    return diagnose(on_machines(PLANTED["slow worker"](0).made.observed()))


def test_a_slow_rank_is_named_by_its_machine(worker: Diagnosis) -> None:
    first = worker.findings[0]
    copy, rank = first.where["copy"], first.where["rank"]
    at = copy * worker.schedule.ranks + rank
    data = first.to_dict()["where"]
    assert (data["rank"], data["copy"]) == (rank, copy)
    assert data["global_rank"] == 100 + at
    assert data["host"] == f"node{at % 2}"
    assert data["file"] == f"rank{100 + at}.json"
    name = f"(global rank {100 + at}, host node{at % 2}, file rank{100 + at}.json)"
    assert f"rank {rank} of copy {copy}, stage {rank} {name} takes" in first.text
    assert headline(worker).startswith(
        f"Rank {rank} of copy {copy} (global rank {100 + at}, host node{at % 2}) is slow: "
    )


def test_facts_that_all_ranks_share_are_no_words(worker: Diagnosis) -> None:
    run = worker.run
    plain = [Location(r, "node", "run.json") for _ in range(2) for r in range(run.schedule.ranks)]
    alike = Machines.of(replace(run, locations=tuple(plain)))
    assert alike.named({"rank": 1, "copy": 0}) == ""
    assert alike.facts({"rank": 1, "copy": 0}) == {
        "global_rank": 1, "host": "node", "file": "run.json",
    }  # fmt: skip
    assert Machines.of(replace(run, locations=())).columns(9) == {}


def test_places_of_several_ranks_have_lists(worker: Diagnosis) -> None:
    ranks = worker.schedule.ranks
    machines = Machines.of(worker.run)
    assert machines.facts({"stage": 1, "rank": 1})["global_rank"] == [
        101,
        101 + ranks,
        101 + 2 * ranks,
    ]
    assert machines.facts({"copy": 1})["global_rank"] == [100 + ranks + r for r in range(ranks)]
    assert machines.facts({"link": [2, 1], "copy": 0})["host"] == ["node0", "node1"]
    assert machines.facts({}) == {}
    assert machines.ends({"link": [2, 1], "copy": 0}) == (
        " (global ranks 102 and 101, hosts node0 and node1)"
    )


def test_a_link_within_a_host_has_no_route(worker: Diagnosis) -> None:
    alone = diagnose(on_machines(PLANTED["slow link"](0).made.observed(), hosts=1))
    apart = diagnose(on_machines(PLANTED["slow link"](0).made.observed()))
    assert "route between their hosts" in apart.findings[0].advice
    assert "route" not in alone.findings[0].advice
    assert "one host" in alone.findings[0].advice


@pytest.mark.parametrize("name", [cause for cause in CAUSES if cause not in INHERENT])
def test_advice_fits_the_device(worker: Diagnosis, name: str) -> None:
    where: Where = {"stage": 1, "rank": 1, "copy": 0, "link": [0, 1]}
    run = replace(worker.run, device="cpu", backend="gloo")
    text = texts(name, where, run)
    for words in ("CUDA", "device", "Megatron", "expandable", "nvidia", "faster link", "power"):
        assert words not in text
    assert text != texts(name, where, replace(run, device="gpu")) or name in (
        "slow-stage", "slow-copy", "slow-link", "head-of-line", "garbage-collection",
        "sequence-length", "order",
    )  # fmt: skip


def test_unsteady_times_and_outliers_have_different_words(worker: Diagnosis) -> None:
    one = cause("jitter", {})
    both = (one, replace(one, size=np.nan))
    machines = Machines.of(worker.run)
    cases = [wording.CauseInRun(each, worker.run, machines) for each in both]
    found = {wording.words_of(case).description for case in cases}
    assert len(found) == 2


@pytest.mark.parametrize("name", PLANTED)
def test_findings_differ_in_words(name: str) -> None:
    found = of_planted(name, 0).findings
    assert len({one.text for one in found}) == len(found)


@pytest.mark.parametrize("name", PLANTED)
def test_a_change_removes_its_finding(name: str) -> None:
    """A change that a finding gives, to within its rounding, gains what the finding gains."""
    found = of_planted(name, 0)
    others = ("transfer", "launch-gap")
    those = [one for one in found.findings if one.change and one.cause not in others]
    gains = [with_changes(found.replay, [Change.parse(str(one.change))]).gain for one in those]
    assert gains == pytest.approx([one.gain for one in those], rel=0.25)


@pytest.mark.parametrize(
    ("share", "error", "text"),
    [(0.1234, 0.0, "12.3 %"), (0.1234, 0.0071, "12.3 % ± 0.7"), (0.1234, 0.03, "12 % ± 3"),
     (0.02, 0.0302, "up to 5 %"), (0.1234, 0.0099, "12 % ± 1")],
)  # fmt: skip
def test_shares_have_the_digits_that_errors_leave(share: float, error: float, text: str) -> None:
    assert wording.share_text(share, error) == text


def test_uncertain_gains_are_no_gains() -> None:
    found = of_planted("slow stage", 0)
    first: Finding = replace(found.findings[0], gain=None)
    unsure = replace(found)
    unsure.__dict__["_found"] = ((first,), 0.0)
    assert headline(unsure).endswith("is slow; what that costs is uncertain")
    text = report(unsure, 100)
    assert "lost, ms" in text
    assert " % less)" not in headline(unsure)


def test_a_prediction_longer_than_the_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plain()
    assert longer_than_observed(found) == ""
    monkeypatch.setattr(Diagnosis, "plan", 1.5 * float(found.run.step_times.mean()))
    assert longer_than_observed(found).startswith("The predicted step is 50 % longer than the")
    assert "predicted step is 50 % longer than the observed" in report(found, 200)


@pytest.mark.parametrize(
    ("copies", "missing", "text"),
    [
        (1, [(0, 1)], "Rank 1 was not traced, or not as a whole: its times are those of other"),
        (1, [(0, 0), (0, 1), (0, 3)], "Ranks 0, 1 and 3 were not traced, or not as a whole: their"),
        (2, [(1, 2)], "Rank 2 of copy 1 was not traced, or not as a whole: its times are those of"),
        (2, [(0, 1), (1, 0), (1, 3)], "Rank 1 of copy 0 and ranks 0 and 3 of copy 1 were not"),
    ],
)
def test_ranks_without_a_trace_come_second(
    copies: int, missing: list[tuple[int, int]], text: str
) -> None:
    made = Made(one_f_one_b(4, 8), copies=copies, steps=1, missing=tuple(missing))
    found = diagnose(made.observed())
    assert not_traced(found).startswith(text)
    assert report(found, 100).split("\n\n")[1].startswith(text)


def test_a_mean_that_is_not_the_median_is_called_mean() -> None:
    steps = Made(one_f_one_b(4, 8), copies=1, steps=3, noise=0.0,
                 time=lambda _, at: 1 + (at.step == 0 and at.stage == 1))  # fmt: skip
    assert " without that, a mean step takes " in headline(diagnose(steps.observed()))
    assert " without that, a step takes " in headline(diagnose(replace(steps, steps=1).observed()))


def test_a_replay_that_is_far_off_knows_of_no_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(of_planted("slow stage", 0))
    found.__dict__["_found"] = ((), 0.0)
    assert headline(found).startswith("Nothing to gain")
    monkeypatch.setattr(Diagnosis, "replay_error", 0.21)
    assert headline(found).startswith("No gains are given: replayed steps are 21.0 % off")
    assert report(found, 200).count("No gains are given") == 1
