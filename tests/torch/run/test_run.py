"""What a run says of models: tied, frozen, random, wrong ones; and of what it measured."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble as db
from debubble.core.errors import FormatError, ParameterError
from debubble.torch.run.job import RunData
from debubble.torch.run.report import RunReport
from debubble.torch.run.run import Settings, run
from debubble.torch.run.verify import reference
from tests.patience import patience
from tests.torch.world import ByValue

pytestmark = pytest.mark.processes

SCHEDULE = db.make("1f1b", ranks=2, microbatches=3)
WORDS, WIDTH = 5, 4


def layers(stages: int) -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]


def vectors(number: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(number)
    x, y = torch.randn(2, 3, WIDTH, generator=source)
    return x, y


def made(
    modules: Callable[[int], Any] = layers, loss: Any = functional.mse_loss, data: Any = vectors
) -> Callable[[int], Any]:
    def model(stages: int) -> Any:
        return modules(stages), loss, data

    return model


def ran(model: Any, schedule: db.Schedule = SCHEDULE, **settings: Any) -> RunReport:
    words = {"steps": 0, "timeout": patience(30)} | settings
    source = model if isinstance(model, str) else ByValue(model)
    report = run(schedule, Settings(source, **words))
    assert report is not None
    return report


def tied(stages: int) -> Any:
    """An embedding whose weight is the output layer's, too."""
    embedding = nn.Embedding(WORDS, WIDTH)
    head = nn.Linear(WIDTH, WORDS, bias=False)
    head.weight = embedding.weight
    modules: list[nn.Module] = [embedding, *layers(stages - 2), head]

    def data(number: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(number)
        both = torch.randint(WORDS, (2, 3), generator=source)
        return both[0], both[1]

    return modules, functional.cross_entropy, data


@pytest.mark.parametrize("runtime", ["torch", "debubble"])
def test_tied_weights_stay_tied(runtime: str) -> None:
    schedule = db.make("zb-v", ranks=2, microbatches=4)
    report = ran(tied, schedule, runtime=runtime)
    assert report.equal, str(report)
    assert report.verification is not None
    # Two layers of two stages, and the tied weight on both of its stages.
    assert report.verification.tensors == 6


def test_the_reference_of_tied_weights_is_one_model() -> None:
    schedule = db.make("zb-v", ranks=2, microbatches=4)
    run_data = RunData(tied, schedule)
    _, found = reference(schedule, run_data)
    whole = nn.Sequential(*copy.deepcopy(list(run_data.model.stages))).double()
    for number in range(4):
        x, y = run_data.model.data(number)
        (run_data.model.loss(whole(x), y) / 4).backward()
    weight: Any = whole[0].weight
    for place, name in (((0, 0), "weight"), ((0, 3), "weight")):
        torch.testing.assert_close(torch.from_numpy(found[place][name]), weight.grad)


@pytest.mark.parametrize("runtime", ["torch", "debubble"])
def test_frozen_weights_have_no_gradients(runtime: str) -> None:
    def frozen(stages: int) -> list[nn.Module]:
        modules = layers(stages)
        modules[0].requires_grad_(False)
        modules[1][0].weight.requires_grad_(False)  # type: ignore[index, union-attr]
        return modules

    report = ran(made(frozen), runtime=runtime)
    assert report.equal, str(report)
    assert report.verification is not None
    assert report.verification.tensors == 1


def test_a_random_model_is_said_to_be_random() -> None:
    def random(stages: int) -> list[nn.Module]:
        return [nn.Sequential(layer, nn.Dropout(0.5)) for layer in layers(stages)]

    report = ran(made(random))
    assert not report.equal
    assert "the model is random (dropout?); gradients cannot be compared" in str(report)
    assert report.to_dict()["verification"]["random"]


def test_a_model_that_gives_nan_is_said_to() -> None:
    report = ran(made(loss=lambda y, t: functional.mse_loss(y, t) * float("nan")))
    assert "the model's loss is not finite without a pipeline, either" in str(report)
    assert not report.equal


def test_data_is_asked_for_once() -> None:
    asked: list[int] = []

    def data(number: int) -> tuple[Tensor, Tensor]:
        asked.append(number)
        # Not what its number says: another draw each time.
        return torch.randn(3, WIDTH), torch.randn(3, WIDTH)

    assert ran(made(data=data), steps=1).equal
    # The calibration has its own model.
    assert asked == [0, 1, 2]


class Pairs(nn.Module):
    """Takes two tensors or a mapping, and returns both."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, mask: Tensor | None = None) -> Any:
        if isinstance(x, dict):
            x, mask = x["x"], x["mask"]
        return self.layer(x) * mask, mask


@pytest.mark.parametrize(
    ("form", "runtime"), [("dict", "debubble"), ("tuple", "debubble"), ("tuple", "torch")]
)
def test_data_in_dicts_and_tuples(form: str, runtime: str) -> None:
    def data(number: int) -> Any:
        x, y = vectors(number)
        mask = (y > 0).float()
        return ({"x": x, "mask": mask} if form == "dict" else (x, mask)), {"y": y}

    def loss(output: Any, target: dict[str, Tensor]) -> Tensor:
        return functional.mse_loss(output[0], target["y"])

    model = made(lambda stages: [Pairs() for _ in range(stages)], loss, data)
    report = ran(model, runtime="auto" if form == "dict" else runtime)
    assert (report.runtime, report.equal) == (runtime, True)


def test_microbatches_of_different_lengths() -> None:
    def data(number: int) -> tuple[Tensor, Tensor]:
        return torch.ones(2 + number, WIDTH), torch.zeros(2 + number, WIDTH)

    report = ran(made(data=data))
    assert (report.runtime, report.equal) == ("debubble", True)
    with pytest.raises(ParameterError, match="microbatches have different shapes"):
        ran(made(data=data), runtime="torch")


def test_half_precision_between_stages() -> None:
    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.weight.dtype)).to(torch.bfloat16)

    def half(stages: int) -> list[nn.Module]:
        return [*(Half(WIDTH, WIDTH) for _ in range(stages - 1)), Cast(WIDTH, WIDTH)]

    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.weight.dtype))

    for runtime in ("torch", "debubble"):
        assert ran(made(half), runtime=runtime).equal


def test_a_kernel_without_float64_is_compared_in_float32() -> None:
    class Single(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise RuntimeError("Expected mat_a to be Float32 or BFloat16 matrix, got Double")
            return super().forward(x)

    report = ran(made(lambda stages: [Single(WIDTH, WIDTH) for _ in range(stages)]))
    assert report.equal
    assert "compared in float32 within 0.0001" in str(report)
    assert report.to_dict()["verification"]["tolerance"] == 1e-4


def boom(*_: Any) -> Any:
    raise ValueError("no")


class Boom(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        boom()
        return x


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (boom, r"test_run.py:boom failed: ValueError: no \(line \d+\)"),
        (made(data=boom), r"failed: ValueError: no \(line \d+\)"),
        (made(loss=boom), r"failed: ValueError: no \(line \d+\)"),
        (made(lambda stages: [Boom(4, 4)] * stages), r"failed: ValueError: no \(line \d+\)"),
        (made(lambda _: nn.Linear(1, 1)), "model returned Linear for the stages; return a li"),
        (made(lambda _: [1, 2]), r"stage 0 of model is int; return a torch.nn.Module"),
        (made(loss=3), r"returned int for loss; return a function of \(output, target\)"),
        (made(data=[]), r"returned list for data; return a function of a microbatch's number"),
        (made(data=lambda _: (1, 2, 3)), r"data\(0\) returned tuple of 3; return \(input, tar"),
        (made(data=lambda _: torch.ones(2, 4)), r"data\(0\) returned Tensor; return \(input, ta"),
        (made(loss=lambda y, t: y - t), r"loss_fn returned \[3, 4\]; return one number"),
    ],
)
def test_mistakes_in_a_model_are_the_users(model: Any, words: str) -> None:
    with pytest.raises((FormatError, ParameterError), match=words):
        ran(model)


@pytest.mark.parametrize("runtime", ["torch", "debubble"])
def test_a_loss_per_token_is_refused_without_verification_too(runtime: str) -> None:
    with pytest.raises(ParameterError, match=r"loss_fn returned \[3, 4\]; return one number"):
        ran(made(loss=lambda y, t: y - t), runtime=runtime, verify=False, steps=1)


def test_what_is_measured_is_said() -> None:
    report = ran("mlp", steps=3, dtype="bfloat16", verify=False)
    data = report.to_dict()
    assert data["dtype"] == "bfloat16"
    assert data["rate"] == pytest.approx(3 / data["measured"]["makespan"])
    assert "microbatches/s in bfloat16" in str(report)
    assert "median " in str(report)
    assert report.costs["time_unit"] == "ms"
    assert set(report.costs["times"]) >= {"F", "B"}


def test_what_does_not_sleep_is_predicted_with_the_time_it_takes() -> None:
    schedule = db.make("vocab-2", ranks=2, microbatches=4)
    report = ran("gpt-tiny", schedule, steps=2, sleep=0.005, verify=False)
    assert report.predicted is not None
    passes = [a for a, action in enumerate(report.to_dict()["actions"]) if "S" in action[1]]
    actions = report.to_dict()["actions"]
    assert all(actions[place][5] > actions[place][4] for place in passes)
    assert len(passes) == 2 * 4


def test_shared_cores_are_told_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    lines = str(ran("mlp", steps=1, verify=False)).splitlines()
    note = next(n for n, line in enumerate(lines) if line.startswith("2 ranks share 1 cores"))
    assert note < next(n for n, line in enumerate(lines) if line.startswith("makespan"))
