"""``debubble costs``: checks a file, starts one, lists keys; and the page about them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.cli.times import parse_times
from debubble.core.costs import COST_FIELDS
from debubble.interchange.cost_files import load_costs, parse_costs
from debubble.interchange.cost_model import DESCRIBED, key_reference, template

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")


def test_the_template_simulates_as_it_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    assert run("costs", "--init", "-o", path).err.startswith(f"wrote {path}; try: debubble simul")
    assert run("costs", "--init").out == path.read_text()
    result = run("simulate", "1f1b", "--costs", path)
    assert (result.code, result.err) == (0, "")
    assert "memory limit 8 activation units: kept by all ranks" in result.out
    assert run("costs", path).out.startswith(f"ok: {path}\nname      my model\n")


def test_every_key_of_the_template_works_without_its_comment_sign() -> None:
    text = re.sub(r"^( *)# (\w+: )", r"\1\2", template(), flags=re.M)
    file = parse_costs(text, "x.yaml")
    assert set(re.findall(r"^ *(\w+):", text, re.M)) == {
        key for section in DESCRIBED for key, _, _ in key_reference(section)
    }
    assert file.costs.head == {"F": 0.4, "B": 0.8, "activation": 0}
    for name in COST_FIELDS:
        assert getattr(file.costs, name) is not None, name
    assert db.simulate(db.make("1f1b", ranks=8, microbatches=8), file.costs).makespan > 0


def test_lines_of_the_template_fit_a_screen() -> None:
    assert max(map(len, template().splitlines())) <= 100


def test_every_cost_can_be_in_a_file() -> None:
    keys = {key for section in ("times", "memory") for key, _, _ in key_reference(section)}
    fields = set(db.Costs.__dataclass_fields__) - {
        "basis", "runtime", "chunks", "time_unit", "memory_unit"
    }  # fmt: skip
    assert fields == set(COST_FIELDS)
    assert fields <= keys


def test_what_the_page_shows_works() -> None:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S):
        parse_costs(block, "x.yaml")
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    for flag in ("--times", "--rank-times"):
        texts = re.findall(rf"`{flag} (\S+?)[`:]", PAGE)
        assert texts
        for text in texts:
            parse_times(text.rstrip("`"), flag)
    wanted = [db.Costs(F=1), db.Costs(F=[1, 1, 1.5, 1]), db.Costs(F={"default": 1, 2: 1.5})]
    read: dict[str, Callable[[str], db.Costs]] = {
        "`--times`": lambda text: parse_times(text, "--times"),
        "YAML": lambda text: parse_costs(f"times:\n  {text}", "x.yaml").costs,
        "TOML": lambda text: parse_costs(f"[times]\n{text}", "x.toml").costs,
        "JSON": lambda text: parse_costs(f'{{"times": {{{text}}}}}', "x.json").costs,
        "Python": lambda text: eval(f"Costs({text})", {"Costs": db.Costs}),
    }
    shown = [line for line in PAGE.split("## Stages that differ")[1].splitlines() if "|" in line]
    for line in shown[2:7]:
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        for text, costs in zip(cells, wanted, strict=True):
            found = read[name](text.strip(" `"))
            assert found == costs
            assert db.simulate(schedule, found).makespan == db.simulate(schedule, costs).makespan


def test_a_file_is_summarised(run: Run) -> None:
    lines = run("costs", ROOT / "examples" / "zeropipe.yaml").out.splitlines()
    assert lines[1:6] == [
        "name      Profiled layer, 4 ranks, 2 chunks",
        "source    README of zeropipe",
        "sizes     4 ranks, 8 microbatches, 2 chunks",
        "times     F 44.18 ms, I 40.265 ms, W 38 ms, p2p 2.17 ms",
        "          per action: one stage, one microbatch",
    ]
    assert max(map(len, lines[1:])) <= 79


def test_json_is_a_cost_file(run: Run, tmp_path: Path) -> None:
    source = ROOT / "examples" / "zeropipe.yaml"
    again = tmp_path / "again.json"
    again.write_text(run("costs", source, "--json").out)
    old, new = load_costs(source), load_costs(again)
    assert (old.costs, old.memory_unit, old.ranks) == (new.costs, new.memory_unit, new.ranks)


def test_keys_are_explained(run: Run) -> None:
    text = run("costs").out
    assert max(map(len, text.splitlines()[:-2])) <= 79
    rows = json.loads(run("costs", "--json").out)
    assert {"section": "times", "key": "F", "value": "one number, or one per stage",
            "text": "forward; default 1"} in rows  # fmt: skip
    for row in rows:
        assert re.search(rf"^ *{row['key']} ", text, re.M), row["key"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x.yaml", "--init"], "--init writes a new file; leave FILE out, and name it with -o"),
        (["-o", "x.yaml"], "-o needs --init; add it, or leave -o out"),
        (["--init", "-o", "x.json"], "-o 'x.json': the new file is YAML; end it in .yaml"),
        (["nothing.yaml"], "there is no file 'nothing.yaml'"),
        (["x.csv"], "there is no file 'x.csv'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    refused: Run, words: list[str], message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused("costs", *words).startswith(message)


def test_a_new_file_replaces_none(refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text("times: {F: 1}")
    assert "exists; give another name" in refused("costs", "--init", "-o", path)
    assert path.read_text() == "times: {F: 1}"
