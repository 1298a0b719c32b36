"""``debubble compare``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db

Run = Callable[..., Any]

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_fastest_is_first(run: Run) -> None:
    data = run("compare", "gpipe", "1f1b", "zb-h1", "-p", 4, "-m", 8, "--json").data
    assert [row["name"] for row in data["rows"]] == ["zb-h1", "1f1b", "gpipe"]
    assert [row["makespan"] for row in data["rows"]] == [27.0, 33.0, 33.0]
    assert data["best"] == "zb-h1"
    assert data["conventions"]["times"] == "per rank ÷ chunks; F, I and W take 1 each"


def test_a_memory_limit_ranks_those_within_first(run: Run) -> None:
    words = ["compare", "gpipe", "1f1b", "-p", 4, "-m", 8, "--memory", 4]
    data = run(*words, "--json").data
    assert [row["name"] for row in data["rows"]] == ["1f1b", "gpipe"]
    assert [row["fits"] for row in data["rows"]] == [True, False]
    assert run(*words).out.startswith("1f1b is fastest within 4 activation units: 33")


def test_a_cost_file_has_the_sizes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: A model\nranks: 4\nmicrobatches: 16\nchunks: 2\nbasis: rank\ntime_unit: ms\n"
        "times: {F: 2, I: 2, W: 2, O: 5.5}\nmemory: {limit: 5}\n"
    )
    words = ["compare", "dualpipe-v", "interleaved-overlap", "1f1b", "--costs", path]
    data = run(*words, "--json").data
    assert {row["name"]: row["makespan"] for row in data["rows"]} == {
        "dualpipe-v": 95.5, "interleaved-overlap": 98.25, "1f1b": 114.0,
    }  # fmt: skip
    assert (data["memory"], data["costs"]) == (5.0, "A model")
    out = run(*words).out
    assert "[ms]" in out
    assert out.endswith("costs: A model\n")


def test_what_cannot_be_made_is_listed_with_the_reason(run: Run) -> None:
    result = run("compare", "1f1b", "dualpipe", "-p", 3, "-m", 8)
    assert result.code == 0
    assert "skipped dualpipe: 'dualpipe' needs an even number of ranks; ranks is 3" in result.out


def test_when_none_can_be_made_the_exit_code_is_2(run: Run) -> None:
    result = run("compare", "dualpipe", "dualpipe-v", "-p", 3, "-m", 3)
    assert (result.code, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert first.startswith("debubble: dualpipe: 'dualpipe' needs an even number of ranks")
    assert second.startswith("debubble: dualpipe-v: 'dualpipe-v' needs at least 2·ranks")


def test_files_and_functions_that_do_not_fit_are_listed_too(run: Run, tmp_path: Path) -> None:
    db.make("gpipe", ranks=4, microbatches=8).save(tmp_path / "x.csv")
    (tmp_path / "x.py").write_text(
        "import debubble as db\n"
        "def f(*, ranks):\n    raise db.ParameterError(f'not on {ranks} ranks')\n"
    )
    words = [tmp_path / "x.csv", f"{tmp_path}/x.py:f", "-p", 2, "-m", 8]
    data = run("compare", "1f1b", *words, "--json").data
    assert [row["name"] for row in data["rows"]] == ["1f1b"]
    assert [item["reason"] for item in data["skipped"]] == [
        f"{tmp_path}/x.csv has ranks = 4, not 2; leave it out",
        f"{tmp_path}/x.py:f: not on 2 ranks",
    ]
    result = run("compare", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("x.py:f: not on 2 ranks\n")


def test_files_and_functions_are_compared_with_names(run: Run, tmp_path: Path) -> None:
    db.make("gpipe", ranks=4, microbatches=8).save(tmp_path / "x.csv")
    (tmp_path / "x.py").write_text("import debubble as db\ndef f(): return db.make('zb-h1', "
                                   "ranks=4, microbatches=8)\n")  # fmt: skip
    words = [tmp_path / "x.csv", f"{tmp_path}/x.py:f", "-p", 4, "-m", 8]
    data = run("compare", "1f1b", *words, "--json").data
    assert [row["name"] for row in data["rows"]] == ["zb-h1", "1f1b", "x.csv"]


def test_files_alone_need_no_sizes(run: Run, tmp_path: Path) -> None:
    db.make("gpipe", ranks=4, microbatches=8).save(tmp_path / "x.csv")
    data = run("compare", tmp_path / "x.csv", "--json").data
    assert [row["makespan"] for row in data["rows"]] == [33.0]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".html", ".txt"])
def test_pictures_are_written_beside_the_table(run: Run, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    result = run("compare", "1f1b", "zb-h1", "-p", 2, "-m", 4, "-o", path)
    assert result.out.startswith("zb-h1 is fastest: ")
    assert result.err == f"wrote {path}\n"
    assert path.stat().st_size > 200


def test_options_go_to_the_schedules_that_have_them(run: Run) -> None:
    words = ["compare", "1f1b", "interleaved-1f1b", "-p", 2, "-m", 8, "-v", 2, "--group-size", 4]
    rows = {row["name"]: row for row in run(*words, "--json").data["rows"]}
    assert (rows["1f1b"]["chunks"], rows["interleaved-1f1b"]["chunks"]) == (1, 2)
    made = db.make("interleaved-1f1b", ranks=2, microbatches=8, chunks=2, group_size=4)
    wanted = db.simulate(made).peak_activation.max()
    assert rows["interleaved-1f1b"]["peak_activation"] == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1f1b", "gpip", "-p", "4", "-m", "8"], "unknown schedule 'gpip'; did you mean 'gpipe'"),
        (["1f1b", "-m", "8"], "'1f1b' needs ranks; give -p, such as -p 8"),
        (["1f1b", "-p", "8"], "'1f1b' needs microbatches; give -m, such as -m 32"),
        (
            ["1f1b", "-p", "4", "-m", "8", "-o", "x.gif"],
            "'x.gif': pictures and tables end in .png, .svg,",
        ),
        (["1f1b", "-p", "4", "-m", "8", "-o", "no/x.png"], "there is no folder 'no'"),
        (["1f1b", "no.csv", "-p", "4", "-m", "8"], "there is no file 'no.csv'"),
        (["1f1b", "-p", "4", "-m", "8", "--option", "a=3"], "unknown option 'a'; "),
    ],
)
def test_what_cannot_be_compared_is_refused(refused: Run, words: list[str], message: str) -> None:
    assert refused("compare", *words).startswith(message)


def test_recomputes_apply_to_all_schedules(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    db.make("1f1b", ranks=4, microbatches=8).save(path)
    words = ["compare", "1f1b", "zb-h1", path, "-p", 4, "-m", 8, "--recompute", "full"]
    data = run(*words, "--recompute-at", "with-backward", "--json").data
    rows = {row["name"]: (row["makespan"], row["recompute"]) for row in data["rows"]}
    assert rows == {
        "1f1b": (44, "full recompute"),
        "1f1b #2": (44, "full recompute"),
        "zb-h1": (38, "full recompute"),
    }
    assert data["conventions"]["recompute"].startswith("full; R waits for the gradient")
    assert "\nrecompute: full; R waits for its own forward only" in run(*words).out


def test_lowering_applies_to_all_schedules(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    db.make("1f1b", ranks=4, microbatches=8).save(path)
    words = ["compare", "1f1b", path, "-p", 4, "-m", 8, "--transfers", "just-in-time"]
    words += ["--sharding", "fsdp", "--times", "F=1,B=2,unshard=0.5,reduce_grad=1"]
    data = run(*words, "--json").data
    assert [row["makespan"] for row in data["rows"]] == [34.5, 34.5]
    assert "replicas: weights are gathered" in run(*words).out


def test_stages_that_only_some_schedules_have_are_listed_with_the_reason(run: Run) -> None:
    words = ["compare", "1f1b", "interleaved-1f1b", "-p", 4, "-m", 8, "--recompute", "4-7"]
    data = run(*words, "--json").data
    assert [row["recompute"] for row in data["rows"]] == ["recompute on stages 4–7"]
    assert data["skipped"] == [
        {"name": "1f1b", "reason": "recompute has the stage 4; stages go from 0 to 3"}
    ]


def test_the_same_words_give_the_same_answer_in_python(run: Run) -> None:
    words = ["1f1b", "interleaved-1f1b"]
    data = run("compare", *words, "-p", 4, "-m", 8, "--json").data
    assert data["headline"] == db.compare(words, ranks=4, microbatches=8).headline
    assert data["headline"] == "interleaved-1f1b is fastest: 28.5, 13.6 % less time than 1f1b (33)"


def test_costs_per_action_crown_no_schedule_of_another_model(run: Run) -> None:
    out = run("compare", "1f1b", "zb-v", "-p", 4, "-m", 8, "--times", "F=1,B=2").out
    assert out.startswith("the models differ (4 and 8 stages), so none is fastest; zb-v has the ")
    costs = EXAMPLES / "zeropipe.yaml"
    data = run("compare", "1f1b", "zb-h1", "zb-v", "--costs", costs, "--json").data
    assert data["best"] is None
    assert data["ranked_by"] == "overhead"
    assert data["rows"][0]["name"] == "zb-v"


def test_several_numbers_of_chunks(run: Run, tmp_path: Path) -> None:
    order = tmp_path / "order.json"
    db.make("1f1b", ranks=4, microbatches=8).save(order)
    function = tmp_path / "mine.py"
    function.write_text(
        "import debubble as db\n"
        "def mine(ranks, microbatches, chunks=1):\n"
        "    return db.make('interleaved-1f1b', ranks=ranks, microbatches=microbatches,\n"
        "                   chunks=chunks)\n"
    )
    names = ["interleaved-1f1b", "zb-v", order, f"{function}:mine"]
    data = run("compare", *names, "-p", 4, "-m", 8, "-v", "2,4", "--json").data
    assert sorted((row["name"], row["chunks"]) for row in data["rows"]) == [
        ("1f1b", 1),
        ("interleaved-1f1b (chunks=2)", 2), ("interleaved-1f1b (chunks=2) #2", 2),
        ("interleaved-1f1b (chunks=4)", 4), ("interleaved-1f1b (chunks=4) #2", 4),
        ("zb-v", 2),
    ]  # fmt: skip
    assert run("compare", "zb-v", "-p", 4, "-m", 8, "-v", "2,x").err.endswith(
        "-v is 'x'; give a whole number\n"
    )


def test_a_limit_for_each_rank(run: Run) -> None:
    data = run("compare", "1f1b", "gpipe", "-p", 4, "-m", 8, "--memory", "4/3/2/1", "--json").data
    assert [row["fits"] for row in data["rows"]] == [True, False]
    assert data["memory"] == [4, 3, 2, 1]
    assert "memory has 3 limits for 4 ranks" in run(
        "compare", "1f1b", "-p", 4, "-m", 8, "--memory", "4/3/2"
    ).err  # fmt: skip


def test_chunks_that_no_schedule_takes_are_refused(run: Run, refused: Run) -> None:
    words = ("-p", 4, "-m", 8, "-v", 2)
    said = refused("compare", "1f1b", "zb-h1", *words)
    assert "chunks is 2, and no schedule here has a choice: 1f1b has 1, zb-h1 has 1" in said
    assert run("compare", "1f1b", "interleaved-1f1b", "zb-v", *words).code == 0


def test_several_numbers_of_microbatches_are_a_row_each(run: Run, refused: Run) -> None:
    data = run("compare", "1f1b", "zb-v", "-p", 4, "-m", "4,8", "--json").data
    found = {row["name"]: row["makespan"] for row in data["rows"]}
    assert found == {
        "1f1b (microbatches=4)": 21.0, "1f1b (microbatches=8)": 33.0,
        "zb-v (microbatches=4)": 13.5, "zb-v (microbatches=8)": 25.5,
    }  # fmt: skip
    assert (data["ranked_by"], data["best"]) == ("overhead", None)
    assert "several numbers are for" in refused("simulate", "1f1b", "-p", 4, "-m", "4,8")
