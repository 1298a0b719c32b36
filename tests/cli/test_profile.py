"""``debubble profile``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debubble.interchange.cost_files import load_costs
from tests.contracts import follows_its_contract

pytest.importorskip("torch", reason="profiles stages with PyTorch; install torch")

pytestmark = pytest.mark.slow  # loads PyTorch

MODEL = f"{Path(__file__).parents[2] / 'examples' / 'model.py'}:build"


def test_the_file_is_what_other_commands_take(run: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    result = run(
        "profile", "--model", MODEL, "-p", 2, "-v", 2, "-m", 4, "--steps", 1, "-o", path
    )  # fmt: skip
    assert result.code == 0
    again = f"debubble optimize --costs {path} --layers costs"
    assert result.err == f"wrote {path}; try: {again}\n"
    lines = result.out.splitlines()
    assert lines[0].split() == [
        "stage", "F", "ms", "I", "ms", "W", "ms", "B", "ms", "after", "F", "after", "I", "inputs",
        "weights",
    ]  # fmt: skip
    assert sum(line.startswith("stage ") for line in lines) == 1 + 4
    file = load_costs(path)
    assert (file.ranks, file.chunks, file.microbatches, file.name) == (2, 2, 4, "build")
    assert len(file.layers["F"]) == 10
    assert run("costs", path).code == 0
    simulated = run("simulate", "zb-v", "--costs", path, "--json")
    assert simulated.data["stages"] == 4
    compared = run("compare", "zb-v", "interleaved-1f1b", "--costs", path, "--json")
    assert compared.code == 0
    best = tmp_path / "best.json"
    words = ("--effort", 0.01, "--no-cache", "-o", best)
    assert run("optimize", "--costs", path, *words).code == 0
    assert run("simulate", best, "--costs", path).code == 0


def test_json_and_layers_left_out(run: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    words = ("--steps", 1, "--no-layers", "--json", "-o", path)
    result = run("profile", "--model", MODEL, "-p", 2, *words)
    assert result.data["ranks"] == 2
    assert "layers" not in result.data
    follows_its_contract("profile", result.data | {"layers": {}})
    assert tuple(result.data["times"]["F"]) == load_costs(path).costs.F


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "gpt-tiny"), "--model is 'gpt-tiny'; give file.py:function, or a config.json"),
        (("--model", MODEL, "--steps", "0"), "--steps is '0'; give a whole number from 1"),
        (("--model", MODEL, "-o", "costs.csv"), "-o 'costs.csv': a cost file is written as .yaml"),
        (("--model", MODEL, "--device", "tpu"), "--device is 'tpu'; use auto, cpu, cuda"),
        (("--model", "nowhere/config.json"), "there is no file 'nowhere/config.json'"),
    ],
)
def test_what_is_refused(
    refused: Callable[..., str], words: tuple[object, ...], message: str
) -> None:
    assert refused("profile", "-p", 2, *words).startswith(message)


def test_an_error_of_the_model_is_its_own(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "class Stage(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise RuntimeError('my layer does not like this input')\n"
        "def build(stages):\n"
        "    modules = [Stage() for _ in range(stages)]\n"
        "    return modules, torch.nn.functional.mse_loss, lambda i: (torch.ones(2),) * 2\n"
    )
    message = refused("profile", "--model", f"{path}:build", "-p", 2)
    assert message == (
        f"{path}:build failed: RuntimeError: my layer does not like this input (line 4)"
    )


def test_a_config_without_a_decoder_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    pytest.importorskip("transformers", reason="knows the types of models")
    path.write_text('{"model_type": "llame"}')
    message = refused("profile", "--model", path, "-p", 2)
    words = "model_type is 'llame', of no causal language model; did you mean 'llama'"
    assert message.startswith(f"{path}: {words}")
    path.write_text('{"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 12}')
    message = refused("profile", "--model", path, "-p", 2)
    assert message.startswith("a model of type 'bert' cannot be cut: it has no ")


def test_a_hugging_face_config(run: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="builds a model of transformers")
    path, costs = tmp_path / "config.json", tmp_path / "costs.yaml"
    path.write_text(
        '{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,'
        ' "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,'
        ' "max_position_embeddings": 32, "dtype": "bfloat16"}'
    )
    words = ("--steps", 1, "--rows", 2, "--tokens", 8, "-o", costs)
    result = run("profile", "--model", path, "-p", 2, *words)
    assert result.code == 0
    file = load_costs(costs)
    assert file.name == "llama, 9,072 parameters, 2 x 8 tokens, bfloat16"
    # The hidden states of two sequences of eight tokens in bfloat16.
    assert file.costs.message == 2 * 8 * 16 * 2
    assert [len(file.layers[kind]) for kind in "FIWB"] == [3, 3, 3, 3]
    assert run("simulate", "zb-h1", "--costs", costs, "-m", 4).code == 0
    float32 = run("profile", "--model", path, "-p", 2, *words[:-2], "--dtype", "float32", "--json")
    assert float32.data["times"]["message"] == 2 * 8 * 16 * 4


@pytest.mark.processes
def test_layers_that_differ_are_measured_cut_and_trained(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="builds the model")
    torch = pytest.importorskip("torch")
    import debubble.torch as dt
    from tests.torch.loop import cross_entropy
    from tests.torch.world import in_ranks

    # Every second layer is a mixture of experts.
    sizes = {
        "vocab_size": 61, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 2,
        "max_position_embeddings": 32, "experts_implementation": "eager",
    }  # fmt: skip
    config, costs, best = (tmp_path / name for name in ("config.json", "costs.yaml", "best.csv"))
    config.write_text(json.dumps({"model_type": "qwen3_moe", "dtype": "float32", **sizes}))
    measured = run("profile", "--model", config, "-p", 2, "-m", 4, "--steps", 3, "--rows", 1,
                   "--tokens", 8, "-o", costs)  # fmt: skip
    assert measured.code == 0, measured.err
    forward = load_costs(costs).layers["F"]
    assert len(forward) == 6
    assert len(set(forward)) > 1

    words = ["--costs", costs, "--layers", "costs", "--effort", 0.01, "--no-cache"]
    data = run("optimize", *words, "-o", best, "--json").data
    assert data["makespan"] == pytest.approx(
        run("simulate", best, "--costs", tmp_path / "best.costs.json", "--json").data["makespan"]
    )
    modules = json.loads((tmp_path / "best.modules.json").read_text())
    assert modules["layers"] == data["layers"]
    assert sum(data["layers"]) == 6

    def model() -> Any:
        torch.manual_seed(0)
        kind = transformers.AutoConfig.for_model("qwen3_moe", **sizes)
        return transformers.AutoModelForCausalLM.from_config(kind, dtype=torch.float64)

    tokens = torch.randint(61, (4, 9), generator=torch.Generator().manual_seed(1))
    x, y = tokens[:, :-1], tokens[:, 1:]
    whole = model()
    wanted = cross_entropy(whole(x).logits, y)
    wanted.backward()
    gradients = {name: weight.grad for name, weight in whole.named_parameters()}

    def work(rank: int) -> tuple[float, bool]:
        one = model()
        # By numbers of layers, or by the names that NeMo Automodel takes: the same stages.
        stages = dt.split(one, modules["layers"])
        named = dt.split(one, modules["automodel"])
        same = [
            [name for name, _ in stage.named_parameters()] for stage in stages
        ] == [[name for name, _ in stage.named_parameters()] for stage in named]  # fmt: skip
        pipe = dt.Pipeline(str(best), stages, cross_entropy)
        loss = pipe.step(x, target=y).item()
        mine = [(w.grad, gradients[n]) for n, w in one.named_parameters() if w.grad is not None]
        close = all(torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12) for ours, theirs in mine)
        return loss, same and close and len(mine) > 0

    for loss, right in in_ranks(2, work):
        assert loss == pytest.approx(wanted.item(), rel=1e-9)
        assert right
