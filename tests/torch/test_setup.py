"""What is said to people who give something else: before the first step, and in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import debubble as db
import debubble.torch as dt
from debubble.torch.ranks.process_group import uses_nccl
from debubble.torch.setup import find_modules
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4
MADE = {"microbatches": M, "timeout": 10}
X, Y = vectors(M, 0)


def pipeline(schedule: Any = "1f1b", stages: Any = None, loss: Any = None, **more: Any) -> Any:
    """Two stages that are right but for what is given."""
    options = (MADE if isinstance(schedule, str) else {}) | more
    return dt.Pipeline(schedule, stages or mlp(2), loss or functional.mse_loss, **options)


def messages(work: Callable[[], Any]) -> list[str]:
    """What two ranks that do the same are told, one after the other."""

    def at_once(_: int) -> str:
        dist.barrier()  # all are connected before one fails
        return repr(work())

    found = in_ranks(2, at_once, fails=True)
    return list(dict.fromkeys(str(text).partition(": ")[2].partition("\n")[0] for text in found))


class Silent(nn.Module):
    """Forgets to return."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32).double()

    def forward(self, x: Tensor) -> None:
        self.layer(x)


class Checkpointed(nn.Module):
    """Shows in its forward alone that it recomputes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp(1)[0]

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


BEFORE: list[tuple[dict[str, Any], str]] = [
    ({"stages": mlp(3)}, "stages has 3 modules for 2 stages; give all, or a mapping of"),
    ({"stages": {7: nn.Linear(1, 1)}}, "rank 0 of '1f1b' has stages 0, and is given 7; give 0"),
    ({"stages": {"a": nn.Linear(1, 1)}}, "stages has the key 'a'; give a mapping {stage: module}"),
    ({"stages": lambda _: "me"}, "stage 0 is str; give a torch.nn.Module"),
    ({"stages": nn.Linear(1, 1)}, "stages is Linear; give a function of a stage's number, a"),
    ({"schedule": 3}, "schedule is 3; give a name, a file or a debubble.Schedule"),
    ({"schedule": "1f1bb"}, "unknown schedule '1f1bb'; did you mean '1f1b'"),
    (
        {"microbatches": None, "microbatch": 4},
        "there is no microbatch=; did you mean microbatches=?",
    ),
    ({"timout": 4}, "there is no timout=; did you mean timeout=?"),
    ({"ranks": 4}, "'1f1b' has 4 ranks and the process group 2; start 4 processes, give group="),
    ({"loss": nn.MSELoss}, "loss_fn is the class MSELoss; give an object of it, MSELoss()"),
    ({"loss": 3}, "loss_fn is 3; give a function of (output, target)"),
    ({"engine": "pytorch"}, "engine is 'pytorch'; did you mean 'torch'?"),
    ({"split": "fused"}, "split is 'fused'; use 'auto', 'keep' or 'fuse'"),
    ({"scale_grads": ["mean"]}, "scale_grads is ['mean']; use 'mean', 'sum' or 'tokens'"),
    ({"timeout": 0}, "timeout is 0; give a positive number of seconds"),
    ({"device": "gpu"}, "device is 'gpu'; give 'cpu', 'cuda:0', …"),
    ({"group": "pp"}, "group is 'pp'; give a process group that this process is in, for"),
    (
        {"stages": [nn.Linear(32, 32, device="meta"), *mlp(1)]},
        "stage 0 has weight on the device 'meta', without numbers; call to_empty(device=…) and",
    ),
    (
        {
            "stages": [*mlp(1), *(one.requires_grad_(False) for one in mlp(1))],
            "shared": [("0.0.weight", "1.0.weight")],
        },
        "shared weights differ: 1.0.weight is frozen and 0.0.weight is not; set requires_grad",
    ),
    ({"shared": [("0.0.weight",)]}, "shared has ('0.0.weight',); give pairs of names, for"),
    ({"shared": [("0.x", "1.0.weight")]}, "shared names '0.x', which no stage has; known: 0.0."),
]


def test_a_stage_on_another_device() -> None:
    schedule, gpu = db.make("1f1b", ranks=2, microbatches=2), torch.device("cuda:1")
    words = (
        r"0 has 0.weight on cpu, and this rank computes on cuda:1; move the stage by \.to\('cuda:1'"
    )
    with pytest.raises(db.ParameterError, match=words):
        find_modules(mlp(2), schedule, 0, gpu)


@pytest.mark.parametrize(
    ("config", "nccl"),
    [
        ("cuda:nccl", True),
        ("cpu:gloo,cuda:nccl", True),  # of init_process_group() without a name
        ("cpu:gloo,cuda:gloo", False),
        ("cpu:gloo", False),
    ],
)
def test_what_a_gpu_sends_by(config: str, nccl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda _: config)
    assert uses_nccl(None) == nccl


def test_without_a_process_group() -> None:
    with pytest.raises(db.DebubbleError, match=r"call torch\.distributed\.init_process_group\(\)"):
        pipeline()


@pytest.mark.parametrize("number", range(len(BEFORE)))
def test_before_the_first_step(number: int) -> None:
    wrong, words = BEFORE[number]
    found = messages(lambda: pipeline(**wrong))
    assert any(text.startswith(words) for text in found), found
    assert all("Gloo" not in text for text in found)


def test_stages_may_be_named_as_in_a_module_dict() -> None:
    modules = mlp(2)
    found = messages(lambda: pipeline(stages={"0": modules[0], "1": modules[1]}).step(X, target=Y))
    assert found == [""]


INSIDE: list[tuple[Callable[[], Any], str]] = [
    (lambda: pipeline().step(target=Y), "there are no inputs where the first stage is; give its"),
    (lambda: pipeline().step(X), "there is no target where the last stage is; give target=, or"),
    (lambda: pipeline().step(X[:2], target=Y), "the batch has a tensor of shape [2, 32] for 4"),
    (lambda: pipeline().step(arg_mbs=[X], target_mbs=[Y]), "arg_mbs has 1 microbatches; '1f1b'"),
    (lambda: pipeline(stages=[Silent(), *mlp(1)]).step(X, target=Y), "stage 0 returned None; "),
    (lambda: pipeline(stages=[*mlp(1), Silent()]).step(X, target=Y), "stage 1 returned None, of"),
    (lambda: pipeline(loss=lambda x, y: (x - y) ** 2).step(X, target=Y), "loss_fn returned [4,"),
    (
        lambda: pipeline(loss=lambda x, y: (x - y).mean().detach()).step(X, target=Y),
        "loss_fn returned a number that has no gradient; compute it from the output without",
    ),
    (
        lambda: pipeline("zb-h1", [Checkpointed(), Checkpointed()], split="keep").step(X, target=Y),
        "the backward of stage 0 cannot be split into I and W: its forward changes what autograd",
    ),
    (
        lambda: pipeline().step(X, target=Y, mask=X[:1]),
        "mask= has a tensor of shape [1, 32] for 4 microbatches; give at least one row for each",
    ),
    (lambda: pipeline().use("zb-v"), "'zb-v' places stages on other ranks than '1f1b'; make a"),
    (lambda: pipeline().costs(), "nothing was measured yet; run a step first"),
    (lambda: pipeline().load_state_dict({}), "the state has no '0.0.weight' and 1 more; it is"),
    (
        lambda: pipeline().load_state_dict({f"{s}.0.{n}": torch.zeros(1) for s in range(2)
                                            for n in ("weight", "bias")}),
        "the state does not fit stage 0: size mismatch for 0.",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(INSIDE)))
def test_in_a_step(number: int) -> None:
    work, words = INSIDE[number]
    found = messages(work)
    assert any(text.startswith(words) for text in found), found


def test_another_order_by_its_name_has_as_many_microbatches() -> None:
    def work() -> int:
        pipe = pipeline()
        pipe.use("gpipe")
        return pipe.schedule.microbatches if pipe.schedule.name == "gpipe" else 0

    assert in_ranks(2, lambda _: work()) == [M, M]
