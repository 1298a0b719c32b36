from dataclasses import replace
from pathlib import Path

import pytest

from debubble.core.errors import FormatError, ParameterError
from debubble.planner.answer.plan import with_measured_steps
from debubble.planner.answer.report import warnings
from debubble.planner.candidate import Candidate
from debubble.planner.cost.calibration_files import calibrate_from, log_seconds
from debubble.planner.cost.layer_times import layer_times
from debubble.planner.cost.measured_run import measured_run
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.best_plans import search
from debubble.planner.search.groups import groups
from tests.planner.published import llama_70b

CASE = llama_70b()
LINE = (
    " iteration {n}/100 | consumed samples: 1280 | elapsed time per iteration (ms): {ms} |"
    " global batch size: {batch} | lm loss: 1.0E+01 |\n"
)
STEP = "{tp: 4, cp: 2, pp: 4, chunks: 5, gpus: 64, batch: 128, seconds: 14.66}"


def read(path: Path, candidate: Candidate | None = None) -> Factors:
    case = CASE
    return calibrate_from(
        str(path), PlanRequest(case.model, case.cluster, case.training), candidate
    )


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_steps_say_what_calibration_does(tmp_path: Path) -> None:
    path = written(tmp_path / "steps.yaml", f"steps:\n- {STEP}\n")
    assert read(path) == CASE.calibrated()


def test_a_step_may_have_a_line_of_a_log(tmp_path: Path) -> None:
    step = STEP.replace("seconds: 14.66", f"log: '{LINE.format(n=9, ms=14660.0, batch=128)}'")
    path = written(tmp_path / "steps.yaml", f"steps:\n- {step}\n".replace("\n'", "'"))
    assert read(path) == CASE.calibrated()


def test_a_log_says_the_seconds_of_the_candidate(tmp_path: Path) -> None:
    lines = [LINE.format(n=n, ms=90000.0 if n < 3 else 14660.0, batch=128) for n in range(9)]
    path = written(tmp_path / "run.log", "".join(lines))
    assert read(path, CASE.candidate) == CASE.calibrated()
    with pytest.raises(ParameterError, match="give all of how it ran, too"):
        read(path)


def test_what_is_open_beside_a_log_is_named(tmp_path: Path) -> None:
    path = str(written(tmp_path / "run.log", LINE.format(n=9, ms=6000.0, batch=64)))
    asked = plan_request("llama-3.1-8b", "h100", 8, 64, 8192)
    message = r"give --cp, --dp, --schedule, --recompute, --zero, too"
    with pytest.raises(ParameterError, match=message):
        with_measured_steps(
            replace(asked, fixed=Fixed(tp=2, pp=2, chunks=1, microbatch_size=1)), path
        )
    fixed = Fixed(tp=2, cp=1, pp=2, chunks=1, microbatch_size=1, schedules=("1f1b",),
                  recompute="none", zero=1)  # fmt: skip
    found = with_measured_steps(replace(asked, fixed=fixed), path)
    assert found.factors.table[-1].measured


def test_steps_faster_than_the_peak_are_refused(tmp_path: Path) -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 64, 8192)
    fixed = Fixed(tp=2, cp=1, pp=2, chunks=1, microbatch_size=1, schedules=("1f1b",),
                  recompute="none", zero=1)  # fmt: skip
    path = str(written(tmp_path / "run.log", LINE.format(n=9, ms=2000.0, batch=64)))
    # 51.47 GFLOP per token on eight GPUs of 989 TFLOP/s take 3.41 s at least.
    with pytest.raises(
        ParameterError, match=r"MFU of 170.* 100 % is the most, which is 3.41 s. Ch"
    ):
        with_measured_steps(replace(asked, fixed=fixed), path)


def test_steps_faster_than_the_best_product_warn(tmp_path: Path) -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 64, 8192)
    fixed = Fixed(tp=2, cp=1, pp=2, chunks=1, microbatch_size=1, schedules=("1f1b",),
                  recompute="none", zero=1)  # fmt: skip
    for ms, warns in ((4100.0, True), (6000.0, False)):
        path = str(written(tmp_path / "run.log", LINE.format(n=9, ms=ms, batch=64)))
        measured = with_measured_steps(replace(asked, fixed=fixed), path)
        found = search(measured, groups(replace(measured, fixed=fixed)))
        said = " ".join(warnings(found.plans[0]))
        assert ("more than the 80 % that the best matrix product on h100" in said) == warns


def test_iterations_of_another_batch_are_refused() -> None:
    line = LINE.format(n=1, ms=1000.0, batch=64)
    assert log_seconds(line, "x.log", 64) == 1.0
    with pytest.raises(FormatError, match=r"x.log: global batch size 64; the plan has 128"):
        log_seconds(line, "x.log", 128)
    with pytest.raises(FormatError, match="no line"):
        log_seconds("nothing", "x.log")


def test_a_profile_says_what_a_layer_takes(tmp_path: Path) -> None:
    one = layer_times(CASE.case(CASE.calibrated()), CASE.model.layers[0])
    rows = "".join(
        f"  {kind}: [{seconds * 1e3:.9f}, {seconds * 1e3:.9f}]\n"
        for kind, seconds in (("F", one.F), ("I", one.I), ("W", one.W))
    )
    text = f"time_unit: ms\ntimes: {{F: 1}}\nlayers:\n{rows}"
    found = read(written(tmp_path / "costs.yaml", text), CASE.candidate)
    assert found.table[0].efficiency == pytest.approx(
        CASE.calibrated().table[0].efficiency, rel=1e-6
    )


def test_costs_of_a_trace_say_what_a_layer_takes(tmp_path: Path) -> None:
    """Of every stage, in the order of the model; embedding and head make the ends longer."""
    one = layer_times(CASE.case(CASE.calibrated()), CASE.model.layers[0])
    degrees, layers = CASE.candidate.degrees, CASE.candidate.layers
    rows = [[seconds * 1e3 * count for count in layers] for seconds in (one.F, one.I + one.W)]
    rows[0][-1] *= 2
    text = "ranks: {}\nchunks: {}\ntime_unit: ms\ntimes:\n  F: {}\n  B: {}\n"
    path = written(
        tmp_path / "costs.yaml", text.format(degrees.pp, degrees.chunks, rows[0], rows[1])
    )
    found = read(path, CASE.candidate)
    assert found.table[0].efficiency == pytest.approx(
        CASE.calibrated().table[0].efficiency, rel=1e-3
    )
    path = written(tmp_path / "costs.yaml", text.format(2, degrees.chunks, rows[0], rows[1]))
    with pytest.raises(ParameterError, match=f"2 is what ran; give it as --pp, not {degrees.pp}"):
        read(path, CASE.candidate)


def test_options_say_what_ran() -> None:
    given = {
        "tp": 4, "cp": 2, "ep": None, "dp": None, "pp": 4, "chunks": 5, "microbatch_size": None,
        "schedule": None, "recompute": None, "zero": None,
    }  # fmt: skip
    run = measured_run(given, "options", PlanRequest(CASE.model, CASE.cluster, CASE.training))
    assert run == CASE.case()


def test_rows_calibrate(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "model,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpu,gpus,tp,pp,vp,cp,dp,micro_batch,"
        "global_batch,precision,step_s\n"
        "Llama3-70B,80,8192,64,8,28672,128256,8192,H100-80GB-SXM,64,4,4,5,2,2,1,128,bf16,14.66\n"
    )
    found = read(path)
    assert found.table[0].efficiency == pytest.approx(CASE.calibrated().table[0].efficiency)
    text = path.read_text()
    path.write_text(text.replace("H100-80GB-SXM", "A100-80GB-SXM").replace("14.66", "44"))
    with pytest.raises(FormatError, match=r"no row is of h100 with Megatron-LM.*are of a100-80gb"):
        read(path)


HEADER = "model,gpu,gpus,tp,pp,global_batch,step_s"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "steps: []", "give steps"),
        ("a.yaml", "- 1", "give steps"),
        ("a.yaml", "steps: [3]", r"steps\[0\]: 3; give a mapping"),
        ("a.yaml", "steps: [{tpp: 4, seconds: 1}]", r"unknown key 'tpp'.*tp"),
        ("a.yaml", "steps: [{tp: four, seconds: 1}]", r"tp: 'four'; give a whole number"),
        ("a.yaml", "steps: [{tp: 4}]", "give seconds"),
        ("a.yaml", "steps: [{tp: 4, seconds: -1}]", "give seconds"),
        ("a.yaml", "steps: [{precision: bf61, seconds: 1}]", "precision: 'bf61'.*bf16"),
        ("a.yaml", "steps: [{batch: 0, seconds: 1}]", "batch 0 is no multiple"),
        ("a.yaml", "steps: [{tp: 3, seconds: 1}]", "does not divide 64"),
        ("a.yaml", "steps: [{tp: 4, microbatch_size: 5, seconds: 1}]", "no multiple"),
        ("a.yaml", "times: {F: 1}", "layers needs lists"),
        ("a.yaml", "time_unit: h\ntimes: {F: 1}\nlayers: {F: [1], I: [1], W: [1]}", "time_unit"),
        ("a.yaml", "times: {F: 1}\nlayers: {F: [0], I: [0], W: [0]}", "communication"),
        ("a.csv", "model,gpu\n", "no column"),
        (
            "a.csv",
            "model,gpu,gpus,tp,pp,global_batch,step_s\nx,h100,1,1,1,1,1\n",
            "a.csv: line 2: .*unknown model 'x'",
        ),
        ("a.csv", f"\n{HEADER}\n\n,h100,1,two,1,1,1\n", "line 4: tp 'two' is no whole number"),
        ("a.csv", f"{HEADER},tp\n,h100,1,1,1,1,1,1\n", "column tp is there twice"),
        ("a.csv", f"{HEADER},hiden\n,h100,1,1,1,1,1,1\n", "'hiden'; did you mean 'hidden'"),
        ("a.csv", f"{HEADER}\n,h100,1,1,1,1,1,9\n", "line 2 has 8 cells, the header 7 columns"),
        ("a.csv", f"{HEADER}\n,h100,1,1\n", "line 2 has 4 cells, the header 7 columns"),
        ("a.csv", "model,gpu,gpus,tp,pp,global_batch,step_s\n", "no row has a step_s"),
        ("a.log", "hello", "no line"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(written(tmp_path / name, text), CASE.candidate)
