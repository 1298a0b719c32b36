"""Spec files: what they say, and messages for what they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.sweeps import Range, read_spec, spec_of

GRID = {"schedule": ["1f1b"], "ranks": [2, 4]}
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_spec_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        """
command: simulate
options:
  microbatches: 8
  costs: {F: 1, W: {default: 1, 2: 1.5}, head: {F: 0.5}, basis: rank}
grid:
  schedule: [1f1b, vpp, 1f1b]
  ranks: [2, 4.0, 8]
  memory: [4, [4, 4, 3, 3]]
samples:
  count: 10
  seed: 3
  draw:
    costs.p2p: {from: 0.01, to: 1, scale: log}
    chunks: {from: 2, to: 8, step: 2}
    costs.kept_for_weight: [0.5, 1]
"""
    )
    spec = read_spec(path)
    assert spec.command == "simulate"
    assert spec.options == {
        "microbatches": 8, "costs.F": 1.0, "costs.W": {"default": 1.0, "2": 1.5},
        "costs.head.F": 0.5, "costs.basis": "rank",
    }  # fmt: skip
    assert spec.grid == {
        "schedule": ("1f1b", "interleaved-1f1b"), "ranks": (2, 4, 8),
        "memory": (4.0, [4.0, 4.0, 3.0, 3.0]),
    }  # fmt: skip
    assert (spec.samples, spec.seed) == (10, 3)
    assert spec.draw == {
        "costs.p2p": Range(0.01, 1.0, log=True), "chunks": Range(2, 8, whole=True, step=2),
        "costs.kept_for_weight": (0.5, 1.0),
    }  # fmt: skip
    assert spec.size == 10 * 2 * 3 * 2


def test_the_former_name_of_a_cost_warns() -> None:
    data = {"command": "simulate", "options": {"costs.overhead": 0.5, "microbatches": 8}}
    with pytest.warns(db.DebubbleDeprecationWarning, match="use costs.launch"):
        spec = spec_of({**data, "grid": GRID})
    assert spec.options["costs.overhead"] == 0.5


def test_files_are_looked_for_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text("times: {F: 2, B: 4}\nranks: 4\n")
    data = {"command": "simulate", "options": {"costs": "costs.yaml"}, "grid": GRID}
    spec = spec_of(data, tmp_path)
    assert spec.files["costs.yaml"].ranks == 4
    before = [point.key for point in spec.points()]
    (tmp_path / "costs.yaml").write_text("times: {F: 3, B: 4}\nranks: 4\n")
    assert not set(before) & {point.key for point in spec_of(data, tmp_path).points()}
    with pytest.raises(db.FormatError, match=r"there is no file '.*cost.yaml'; did you mean"):
        spec_of({**data, "options": {"costs": "cost.yaml"}}, tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "an empty list is no spec of a sweep; it needs command and grid"),
        ({"grid": GRID}, "spec: 'command' is missing"),
        ({"command": "simulat", "grid": GRID}, "command is 'simulat'; did you mean 'simulate'?"),
        ({"command": "simulate", "gird": GRID}, "spec: unknown key 'gird'; did you mean 'grid'?"),
        ({"command": "simulate", "grid": [1]}, "grid is a list; give a mapping"),
        ({"command": "simulate", "grid": {1: [2]}}, "grid has the key 1; keys are names of"),
        ({"command": "simulate"}, "schedule is missing; give it in options, grid or samples"),
        (
            {"command": "simulate", "options": {"schedule": "1f1b"}},
            "nothing varies; give a grid such as",
        ),
    ],
)
def test_a_wrong_spec_is_refused(data: Any, message: str) -> None:
    with pytest.raises(db.DebubbleError) as error:
        spec_of(data)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"rank": [2]}, "unknown option 'rank'; did you mean 'ranks'?"),
        ({"p2p": [0.1]}, "unknown option 'p2p'; did you mean 'costs.p2p'?"),
        ({"costs.p2q": [0.1]}, "unknown cost 'costs.p2q'; did you mean 'p2p'?"),
        ({"costs.head.G": [0.1]}, "unknown cost 'costs.head.G'; did you mean "),
        (
            {"options.group": [2]},
            "unknown option 'options.group'; did you mean 'groups' or 'group_size'?",
        ),
        ({"schedule": ["1f1c"]}, "unknown schedule '1f1c'; did you mean '1f1b'"),
        ({"schedule": "1f1b"}, "grid.schedule is '1f1b'; give a list, or put one value in"),
        ({"ranks": []}, "grid.ranks is an empty list; give a list"),
        ({"ranks": [0]}, "ranks is 0; give a whole number from 1 to 4,096"),
        ({"ranks": [10**400]}, "ranks is 1000000000"),
        ({"ranks": [2.5]}, "ranks is 2.5; give a whole number"),
        ({"ranks": [True]}, "ranks is True; give a whole number"),
        ({"ranks": ["8"]}, "ranks is '8'; give a whole number"),
        ({"ranks": {"from": 1, "to": 8}}, "grid.ranks is a range; ranges are for samples"),
        ({"costs.F": [-1]}, "costs.F is -1; costs are not negative"),
        ({"costs.kept_for_weight": [2]}, "costs.kept_for_weight is 2; it is a share between"),
        ({"costs.basis": ["ranks"]}, "costs.basis is 'ranks'; did you mean 'rank'?"),
        ({"costs": [{"F": 1}]}, "costs is {'F': 1}; give a cost file, or costs.F: 1"),
        ({"memory": [0]}, "memory is 0; give a number above 0"),
        ({"memory": [10**400]}, "memory is 1000000000"),
        ({"p2p_mode": ["chanel"]}, "p2p_mode is 'chanel'; did you mean 'channel'?"),
        ({"recompute_at": ["nowhere"]}, "'nowhere' is no place"),
        ({"recompute": [3]}, "recompute is 3; give a text: "),
    ],
)
def test_a_wrong_value_is_refused(grid: dict[str, Any], message: str) -> None:
    with pytest.raises(db.DebubbleError) as error:
        spec_of({"command": "simulate", "options": {"schedule": "1f1b"}, "grid": grid})
    found = str(error.value)
    if message == "'nowhere' is no place":
        assert "nowhere" in found
    else:
        assert found.startswith(message)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"count": 3}, "samples: 'draw' is missing"),
        ({"count": 3, "draw": {}}, "samples.draw is empty"),
        ({"count": 0, "draw": {"ranks": [2]}}, "samples.count is 0; give a whole number from 1"),
        ({"count": 3, "draw": {"ranks": 4}}, "samples.draw.ranks is 4; give a list"),
        ({"count": 3, "draw": {"ranks": {"from": 4}}}, "samples.draw.ranks: 'to' is missing"),
        ({"count": 3, "draw": {"ranks": {"from": 4, "to": 4}}}, "samples.draw.ranks goes from 4"),
        (
            {"count": 3, "draw": {"ranks": {"from": 1, "to": 4, "step": 0.5}}},
            "samples.draw.ranks.step is 0.5; ranks is a whole number",
        ),
        (
            {"count": 3, "draw": {"costs.p2p": {"from": 0, "to": 4, "scale": "log"}}},
            "samples.draw.costs.p2p begins at 0; a log scale begins above 0",
        ),
        (
            {"count": 3, "draw": {"costs.p2p": {"from": 0, "to": 4, "scale": "lok"}}},
            "samples.draw.costs.p2p.scale is 'lok'; did you mean 'log'?",
        ),
        (
            {"count": 3, "draw": {"costs.p2p": {"from": 0, "to": 1, "step": 2}}},
            "samples.draw.costs.p2p.step is 2; give a number up to 1",
        ),
        (
            {"count": 3, "draw": {"p2p_mode": {"from": 1, "to": 2}}},
            "samples.draw.p2p_mode is a range; p2p_mode is no number",
        ),
        ({"count": 3, "draw": {"schedule": ["gpipe"]}}, "schedule is in options and in samples"),
    ],
)
def test_wrong_samples_are_refused(samples: dict[str, Any], message: str) -> None:
    with pytest.raises(db.DebubbleError) as error:
        spec_of({"command": "simulate", "options": {"schedule": "1f1b"}, "samples": samples})
    assert str(error.value).startswith(message)


def test_a_huge_grid_is_refused_with_its_size() -> None:
    numbers = list(range(1, 4001))
    grid = {"ranks": numbers, "microbatches": numbers, "schedule": ["1f1b"]}
    with pytest.raises(db.ParameterError) as error:
        spec_of({"command": "simulate", "grid": grid})
    assert str(error.value) == (
        "simulate: 4,000 ranks × 4,000 microbatches × 1 schedule = 16,000,000 points; the limit "
        "is 10,000,000. Shorten lists, or draw samples"
    )


@pytest.mark.parametrize("path", sorted((EXAMPLES / "sweeps").iterdir()), ids=lambda p: p.stem)
def test_examples_are_specs(path: Path) -> None:
    assert 16 <= read_spec(path).size <= 1000
