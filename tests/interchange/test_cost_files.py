"""Cost files in YAML, JSON and TOML: read exactly, or refused with file, key and value."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import debubble as db
from debubble.core.costs import COST_FIELDS
from debubble.core.errors import FormatError
from debubble.interchange.cost_files import costs_data, load_costs, parse_costs, save_costs
from debubble.interchange.cost_model import TOP_KEYS, validate

EXAMPLE = Path(__file__).parents[2] / "examples" / "zero-bubble" / "gpt-6.2b-m24.yaml"

YAML = """
name: GPT 28.3B on A100
source: Zero Bubble, arXiv 2401.10241, Table 9
ranks: 32
microbatches: 96
chunks: 2
basis: rank
time_unit: ms
times: {F: 10.419, I: 10.207, W: 7.715, p2p: 0.408}
memory: {unit: MB, activation: 296, kept_for_weight: 0.43, limit: 4000}
expected: {anything: [1, {deep: true}]}
"""

TOML = """
name = "GPT 28.3B on A100"
source = "Zero Bubble, arXiv 2401.10241, Table 9"
ranks = 32
microbatches = 96
chunks = 2
basis = "rank"
time_unit = "ms"
times = {F = 10.419, I = 10.207, W = 7.715, p2p = 0.408}
[memory]
unit = "MB"
activation = 296
kept_for_weight = 0.43
limit = 4000
[expected]
anything = [1, {deep = true}]
"""


def read(tmp_path: Path, text: str, name: str = "x.yaml") -> Any:
    path = tmp_path / name
    path.write_text(text)
    return load_costs(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.yaml", YAML),
        ("x.yml", YAML),
        ("x.toml", TOML),
        ("x.json", json.dumps(yaml.safe_load(YAML))),
    ],
)
def test_all_languages_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    file = read(tmp_path, text, name)
    assert file.costs == db.Costs.per_rank(
        F=10.419, I=10.207, W=7.715, p2p=0.408, activation=296, kept_for_weight=0.43
    )
    assert (file.ranks, file.microbatches, file.chunks) == (32, 96, 2)
    assert (file.memory_limit, file.memory_unit, file.time_unit) == (4000.0, "MB", "ms")
    assert file.name == "GPT 28.3B on A100"
    assert file.source == "Zero Bubble, arXiv 2401.10241, Table 9"
    assert file.expected == {"anything": [1, {"deep": True}]}


def test_everything_but_times_is_optional(tmp_path: Path) -> None:
    file = read(tmp_path, "times: {F: 1, B: 2}")
    assert file.costs == db.Costs(F=1, B=2)
    assert (file.ranks, file.memory_limit, file.name, file.expected) == (None, None, "", {})


def test_values_per_stage_are_lists_or_mappings(tmp_path: Path) -> None:
    text = """
    times:
      F: [1, 2]
      B: {1: 4, 0: 3}
      O: {"0,1": 2.5, "1, 0": 3}
      p2p: [[0, 0.5], [0.25, 0]]
      OPT: [7, 8]
      bandwidth: 100
      message: 5
      overlap_factor: 0.9
      R: 1
    memory: {activation: [1, 2], kept_for_weight: {0: 0, 1: 1}, recompute_kept: 0.125}
    """
    assert read(tmp_path, text).costs == db.Costs(
        F=[1, 2], B={0: 3, 1: 4}, O={(0, 1): 2.5, (1, 0): 3}, p2p=[[0, 0.5], [0.25, 0]],
        OPT=[7, 8], bandwidth=100, message=5, overlap_factor=0.9, R=1, activation=[1, 2],
        kept_for_weight={0: 0, 1: 1},
        recompute_kept=0.125,
    )  # fmt: skip


def test_stages_of_json_and_toml_mappings_are_text(tmp_path: Path) -> None:
    wanted = db.Costs(F={0: 1, 1: 2}, B=1)
    assert read(tmp_path, '{"times": {"F": {"0": 1, "1": 2}, "B": 1}}', "x.json").costs == wanted
    assert read(tmp_path, "[times]\nB = 1\nF = {0 = 1, 1 = 2}", "x.toml").costs == wanted


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    file = read(tmp_path, "times: {F: 1e-3, B: 010, W: .5, I: +2}\nname: no\ntime_unit: 1:30")
    assert (file.costs.F, file.costs.B, file.costs.W, file.costs.I) == (0.001, 10.0, 0.5, 2.0)
    assert (file.name, file.time_unit) == ("no", "1:30")


def test_costs_of_layers_and_what_was_measured(tmp_path: Path) -> None:
    layers = "{F: [1, 2], kept_for_weight: [1, 0.5], embedding: {F: 3, activation: 4}}"
    text = f"times: {{F: 1}}\nlayers: {layers}\nmeasured: {{weights: [1, null]}}"
    file = read(tmp_path, text)
    assert file.layers == {
        "F": (1, 2), "kept_for_weight": (1, 0.5), "embedding": {"F": 3, "activation": 4},
    }  # fmt: skip
    assert file.measured == {"weights": [1, None]}


@pytest.mark.parametrize("name", ["costs.yaml", "costs.json"])
def test_files_that_are_written_are_read(tmp_path: Path, name: str) -> None:
    data = costs_data(load_costs(EXAMPLE).costs) | {"name": "a model: 1", "ranks": 8}
    data["measured"] = {"split": ["it's fine", "no"], "peak": [1, None], "quartiles": [[1, 2.5]]}
    path = tmp_path / name
    save_costs(data, str(path))
    file = load_costs(path)
    assert file.costs == load_costs(EXAMPLE).costs
    assert (file.name, file.ranks) == ("a model: 1", 8)
    assert file.measured == data["measured"]


def test_what_is_no_cost_file_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"a cost file is written as .yaml or .json"):
        save_costs({"times": {"F": 1}}, str(tmp_path / "costs.toml"))
    with pytest.raises(FormatError, match="times is missing"):
        save_costs({}, str(tmp_path / "costs.yaml"))
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "": "null is no cost file; it needs times: {F: 1, B: 2}",
    "- 1": "a list is no cost file; it needs times: {F: 1, B: 2}",
    "ranks: 2": "times is missing; give times: {F: 1, B: 2}",
    "timess: {F: 1}": "unknown key 'timess'; did you mean 'times' or 'runtime'?",
    "times: {F: 1, f: 2}": "unknown key 'times.f'; did you mean 'F'?",
    "times: {F: 1}\nmemory: {activations: 2}": (
        "unknown key 'memory.activations'; did you mean 'activation'?"
    ),
    "times: {F: 1}\n3: 4": "3 is no key; keys are text",
    "times: {}": "times is empty; give at least F and B, or F, I and W",
    "times: 3": "times is 3; give a mapping",
    "times: {F: 1}\nexpected: [1]": "expected is a list; give a mapping",
    "times: {F: 1}\nmeasured: {1: 2}": "measured has a key that is no text; keys are text",
    "times: {F: 1}\nlayers: {F: 1}": "layers.F is 1; give a list with one per layer",
    "times: {F: 1}\nlayers: {F: [1, 2], B: [3]}": (
        "layers.B has 1 values and layers.F 2; both have one per layer"
    ),
    "times: {F: 1}\nlayers: {p2p: [1, 2]}": (
        "unknown key 'layers.p2p'; the nearest are 'mtp', 'recompute_kept' and 'mtp_stage'"
    ),
    "times: {F: 1}\nlayers: {F: [1], head: {F: -1}}": (
        "layers.head[F] is -1; costs are not negative"
    ),
    "times: {F: -1}": "times.F is -1; costs are not negative",
    "times: {F: [1, -0.5]}": "times.F[1] is -0.5; costs are not negative",
    "times: {F: .nan}": "times.F is nan; give a finite number",
    "times: {F: 1e101}": "times.F is 1e+101; costs go to 1e+100; use another unit",
    "times: {F: 1, bandwidth: 1e-200}": "times.bandwidth is 1e-200; give a positive number",
    "times: {F: 1, p2p: .inf}": "times.p2p is inf; give a finite number",
    "times: {F: 1" + "0" * 400 + "}": (
        "times.F is a number with more than 60 digits; give a finite number"
    ),
    'times: {F: "1"}': (
        "times.F is '1'; give a number, a list with one per stage, or a mapping from stages to "
        "numbers"
    ),
    "times: {F: true}": (
        "times.F is true; give a number, a list with one per stage, or a mapping from stages to "
        "numbers"
    ),
    "times:\n  F:\n": (
        "times.F is null; give a number, a list with one per stage, or a mapping from stages to "
        "numbers"
    ),
    "times: {F: []}": (
        "times.F is an empty list; give a number, a list with one per stage, or a mapping from "
        "stages to numbers"
    ),
    "times: {F: [1, [2]]}": "times.F[1] is a list; give a number",
    "times: {F: {0: 1, 2: 3}}": (
        "times.F has no value for stage 1; give all from 0 on, or one for all others: "
        "{default: 1, 2: 1.5}"
    ),
    "times: {F: {}}": (
        "times.F has no value for stage 0; give all from 0 on, or one for all others: "
        "{default: 1, 2: 1.5}"
    ),
    "times: {F: {0: 1, a: 3}}": (
        "times.F has the key 'a'; keys are stages 0, 1, 2, … and 'default' for all others"
    ),
    'times: {F: {0: 1, "0": 3}}': "times.F has the key '0'; it is there twice; remove one",
    "times: {F: {0: -1}}": "times.F[0] is -1; costs are not negative",
    "times: {F: [1, 2], I: [1, 2, 3]}": (
        "times.I has 3 values and times.F 2; both have one per stage"
    ),
    "times: {F: [1, 2]}\nmemory: {activation: [1]}": (
        "memory.activation has 1 values and times.F 2; both have one per stage"
    ),
    "times: {F: [1, 2]}\nranks: 4\nbasis: rank": "times.F has 2 values for 4 ranks",
    "times: {F: 1, OPT: [1, 2]}\nranks: 4": "times.OPT has 2 values for 4 ranks",
    'times: {F: 1, O: {"0-1": 1}}': (
        "times.O has the key '0-1'; keys are stages of the forward: 3, pairs with the stage of the "
        "backward: \"0,3\", and 'default' for all others"
    ),
    'times: {F: 1, O: {"0,1": x}}': "times.O[0,1] is 'x'; give a number",
    "times: {F: 1, O: []}": (
        "times.O is an empty list; give a number, a list with one per stage, or a mapping: "
        '{3: 2.5, "0,3": 2.6}'
    ),
    "times: {F: 1, p2p: [1]}": (
        "times.p2p is a list; give a number, or a square matrix with one row per sending rank"
    ),
    "times: {F: 1, host_bandwidth: 1e-200}": (
        "times.host_bandwidth is 1e-200; give a positive number"
    ),
    "times: {F: 1, p2p: [[0, 1], [1]]}": (
        "times.p2p[1] has 1 numbers; give 2, one per receiving rank"
    ),
    "times: {F: 1, p2p: [[0, 1], [1, x]]}": "times.p2p[1][1] is 'x'; give a number",
    "times: {F: 1, bandwidth: 0}": "times.bandwidth is 0; give a positive number",
    "times: {F: 1, overlap_factor: [1]}": "times.overlap_factor is a list; give a number",
    "times: {F: 1}\nbasis: ranks": "basis is 'ranks'; use 'action' or 'rank'",
    "times: {F: 1}\nranks: 3.5": "ranks is 3.5; give a whole number from 1 to 4,096",
    "times: {F: 1}\nranks: true": "ranks is true; give a whole number from 1 to 4,096",
    "times: {F: 1}\nchunks: 0": "chunks is 0; give a whole number from 1 to 256",
    "times: {F: 1}\nname: 3": "name is 3; give text on one line, at most 200 characters",
    'times: {F: 1}\nname: "a\\eb"': (
        r"name is 'a\x1bb'; give text on one line, at most 200 characters"
    ),
    "times: {F: 1}\nmemory: {recompute_kept: [0, 2]}": (
        "memory.recompute_kept[1] is 2; it is a share between 0 and 1"
    ),
    "microbatches: 3\ntimes: {microbatch: [1, 2]}": (
        "times.microbatch has 2 values for 3 microbatches"
    ),
    "times: {microbatch: {x: 1}}": (
        "times.microbatch has the key 'x'; keys are microbatches 0, 1, 2, … and 'default' for all "
        "others"
    ),
    "times: {F: 1}\nmemory: {kept_for_weight: 1.5}": (
        "memory.kept_for_weight is 1.5; it is a share between 0 and 1"
    ),
    "times: {F: 1}\nmemory: {limit: 0}": "memory.limit is 0; give a positive number",
    "times: {F: 1}\nmemory: {activation: 303104, limit: 4}": (
        "memory.limit is 4, less than one activation of 303104; give both in the same unit, or "
        "leave memory.activation out to count in activation units"
    ),
    "a: 1\nb: 2\na: 3": ", line 3, column 1: the key 'a' is there twice; remove one",
    "a: {b: 1, b: 2}": ", line 1, column 11: the key 'b' is there twice; remove one",
    "a: &x [1]\nb: *x": ", line 1: anchors and aliases are not allowed; write the value out",
    "a: *x": ", line 1: anchors and aliases are not allowed; write the value out",
    "a: !!python/object/apply:os.system [echo]": (
        ", line 1: tags such as 'tag:yaml.org,2002:python/object/apply:os.system' are refused"
    ),
    "a: !x 1": ", line 1: tags such as '!x' are refused",
    "[" * 30: ", line 1: lists or mappings are nested more than 20 deep",
    "? [1]\n: 2": ", line 1, column 3: a key is a list",
    "a: b: c": ", line 1, column 5: mapping values are not allowed in this context",
    "a: 1\n---\nb: 2": ", line 2, column 1: but found another document",
    "a: 1" + "0" * 5000: "a number has too many digits",
    " " * (1 << 20) + "a": "more than 1,048,576 bytes, the limit for such a file",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, text)
    between = "" if message.startswith(",") else ": "
    assert str(caught.value) == f"{tmp_path / 'x.yaml'}{between}{message}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.toml", "a = ", "x.toml: not TOML: Invalid value (at end of document)"),
        ("x.toml", "a = 1\na = 2", "x.toml: not TOML: Cannot overwrite a value"),
        ("x.toml", "a" + ".a" * 30 + "=1", "x.toml, line 1: a key has more than 20 parts"),
        ("x.toml", '\n"a,"' + ' . "b.c"' * 30 + "=1", "x.toml, line 2: a key has more than 20"),
        ("x.toml", "a = " + "[" * 100_000, "x.toml: lists or mappings are nested too deeply"),
        ("x.toml", "a = 1" + "0" * 5000, "x.toml: a number has too many digits"),
        ("x.toml", "times = {F = nan}", "x.toml: times.F is nan; give a finite number"),
        ("x.json", '{"a": 1, "a": 2}', "x.json: the key 'a' is there twice; remove one"),
        ("x.json", '{"times": {"F": NaN}}', "x.json: NaN is not a number"),
        ("x.json", '{"times": {"\\ud800": 1}}', "x.json: times.'\\ud800' is no key; keys are text"),
        ("x.csv", "F,1", "x.csv' is no cost file; they end in .yaml, .json or .toml"),
    ],
)
def test_other_languages_are_as_strict(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, text, name)
    assert message in str(caught.value)


def test_long_lists_and_prose_are_no_long_keys(tmp_path: Path) -> None:
    values = ", ".join(["1.5"] * 64)
    prose = f"# {'a word, ' * 40}\n# {'word ' * 40}\nname = '{'.' * 60}'\n"
    text = f"{prose}times = {{F = [\n{values}\n]}}"
    assert read(tmp_path, text, "x.toml").costs == db.Costs(F=[1.5] * 64)


KEYS = [*TOP_KEYS, "else"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["F", "B", "O", "p2p", "unit", "limit", "0", "0,1"]), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_data_is_valid_or_refused(data: dict[str, Any]) -> None:
    with suppress(FormatError):
        assert validate(data, "x.yaml")["times"]


@given(st.text(alphabet='times: {F1,}[]-&*!"\n#?|>%@e.', max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with suppress(FormatError):
        assert read(tmp_path_factory.getbasetemp(), text).costs.F != -1


@pytest.mark.processes
def test_reading_imports_nothing_slow_before_a_file_is_there() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import debubble.interchange.cost_files; "
        "print([m for m in ('pydantic', 'yaml', 'numba', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ends_of_the_model_have_times_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "times: {F: 2, B: 4, head: {F: 4, B: 8}, mtp: {F: 1}}\n"
        "memory: {activation: 3, head: 0.5, embedding: 1}\n"
    )
    costs = load_costs(path).costs
    assert costs.head == {"F": 4, "B": 8, "activation": 0.5}
    assert costs.embedding == {"activation": 1}
    assert costs.mtp == {"F": 1}
    path.write_text("times: {F: 2, B: 4, head: {f: 4}}\n")
    with pytest.raises(db.FormatError, match=r"unknown key 'times.head.f'; did you mean 'F'"):
        load_costs(path)
    path.write_text("times: {F: 2, B: 4, head: 3}\n")
    with pytest.raises(db.FormatError, match=r"times.head is 3; give a mapping"):
        load_costs(path)


def test_costs_of_sequence_slices(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "times: {F: 1, B: 2, attention: 0.3, exchange: [0.1, 0.2]}\nmemory: {kv: 0.5}\n"
    )
    assert load_costs(path).costs == db.Costs(F=1, B=2, attention=0.3, exchange=(0.1, 0.2), kv=0.5)
    path.write_text("times: {F: 1, B: 2, attention: 1.5}\n")
    with pytest.raises(FormatError, match=r"attention is 1\.5; it is a share between 0 and 1"):
        load_costs(path)


def test_lengths_of_microbatches(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("microbatches: 3\ntimes: {F: 1, B: 2, microbatch: [1, 1.25, 0.75]}\n")
    assert load_costs(path).costs == db.Costs(F=1, B=2, microbatch=[1, 1.25, 0.75])


def test_a_limit_for_each_rank() -> None:
    from debubble.interchange.cost_files import parse_costs

    text = "ranks: 2\ntimes: {F: 1}\nmemory: {limit: [4, 3.5]}\n"
    assert parse_costs(text, "a.yaml").memory_limit == (4.0, 3.5)
    for limit, message in (
        ("[4, 3, 2]", "memory.limit has 3 values for 2 ranks"), ("[4, 0]", "memory.limit"),
        ("[]", "give one number, or a list with one per rank"),
    ):  # fmt: skip
        with pytest.raises(db.FormatError, match=message):
            parse_costs(text.replace("[4, 3.5]", limit), "a.yaml")


def test_values_for_some_stages_stand_over_a_default(tmp_path: Path) -> None:
    wanted = db.Costs(F={"default": 1, 2: 1.5}, B=2, O={"default": 2.5, 1: 2.6, (0, 3): 2.7})
    yaml_text = """times: {F: {default: 1, 2: 1.5}, B: 2, O: {default: 2.5, 1: 2.6, "0,3": 2.7}}"""
    assert read(tmp_path, yaml_text).costs == wanted
    toml = """[times]
B = 2
F = {default = 1, 2 = 1.5}
O = {default = 2.5, 1 = 2.6, "0,3" = 2.7}
"""
    assert read(tmp_path, toml, "x.toml").costs == wanted
    assert read(tmp_path, "times: {F: [1, 2], B: {default: 2, 1: 4}}").costs.B == {
        "default": 2, 1: 4,
    }  # fmt: skip
    assert read(tmp_path, "times: {F: 1, O: [2, 3]}").costs.O == (2, 3)


NUMBERS = st.floats(0, 1e6)
PER_STAGE = (
    NUMBERS
    | st.lists(NUMBERS, min_size=3, max_size=3)
    | st.dictionaries(st.integers(0, 2) | st.just("default"), NUMBERS).map(
        lambda found: {"default": 1.0} | found
    )
)  # fmt: skip
PAIRS = st.tuples(st.integers(0, 2), st.integers(0, 2))
VALUES_OF = {
    "stage": PER_STAGE,
    "rank": PER_STAGE,
    "pair": PER_STAGE | st.dictionaries(PAIRS | st.integers(0, 2), NUMBERS, min_size=1),
    "microbatch": PER_STAGE,
    "boundary": PER_STAGE,
    "link": NUMBERS | st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=3, max_size=3),
    "number": NUMBERS,
    "rate": st.floats(1e-3, 1e6),
    "sharing": st.sampled_from([1, 2]),
    "part": st.dictionaries(st.sampled_from(["F", "B", "activation"]), NUMBERS, min_size=1),
}
SHARES = st.floats(0, 1) | st.lists(st.floats(0, 1), min_size=3, max_size=3)


@given(
    st.fixed_dictionaries(
        {"basis": st.sampled_from(["action", "rank"])},
        optional={
            name: SHARES if spec.share else VALUES_OF[spec.shape]
            for name, spec in COST_FIELDS.items()
        },
    )
)
def test_costs_come_back_from_their_data(values: dict[str, Any]) -> None:
    costs = db.Costs(**values)
    assert parse_costs(json.dumps(costs_data(costs)), "x.json").costs == costs


def test_costs_without_a_forward_come_back() -> None:
    for costs in (db.Costs(B=2), db.Costs(), db.Costs.per_rank(B=2)):
        assert parse_costs(json.dumps(costs_data(costs)), "x.json").costs == costs
