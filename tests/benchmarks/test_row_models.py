import pytest
from row_models import row_model

from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention, LatentAttention
from debubble.planner.model.transformer import Experts, Mlp

KEYS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk")


def shape(*numbers: int | None) -> dict[str, int | None]:
    return dict(zip(KEYS, numbers, strict=True))


@pytest.mark.parametrize(
    ("name", "numbers", "known"),
    [
        ("LLAMA3_70B", (80, 8192, 64, 8, 28672, 128256, None, None), "llama-3.1-70b"),
        ("LLAMA3.1_405B", (126, 16384, 128, 8, 53248, 128256, None, None), "llama-3.1-405b"),
        ("Qwen3_30B_a3B", (48, 2048, 32, 4, 768, 151936, 128, 8), "qwen3-30b-a3b"),
        ("DeepSeekV3", (61, 7168, 128, 128, 2048, 129280, 256, 8), "deepseek-v3"),
        ("GPT OSS 120B", (36, 2880, 64, 8, 2880, 201088, 128, 4), "gpt-oss-120b"),
        ("Nemotron4-15B", (32, 6144, 48, 8, 24576, 256000, None, None), "nemotron-4-15b"),
        ("GPT3-175B", (96, 12288, 96, 96, 49152, 51200, None, None), "gpt-3-175b"),
    ],
)
def test_rows_have_the_parameters_of_their_models(
    name: str, numbers: tuple[int | None, ...], known: str
) -> None:
    found = row_model(name, shape(*numbers))
    assert found.parameters == pytest.approx(read_model(known).parameters, rel=2e-3)


def test_families_say_what_columns_do_not() -> None:
    plain = row_model("GPT-175B", shape(2, 12288, 96, None, 49152, 51200, None, None))
    gated = row_model("LLAMA2-7B", shape(2, 4096, 32, 32, 11008, 32000, None, None))
    assert plain.layers[0].mlp == Mlp(49152, gated=False)
    assert (plain.tied, plain.norm, plain.dropout) == (True, "layer", True)
    assert plain.layers[0].attention == Attention(96, 96, 128)
    assert gated.layers[0].mlp == Mlp(11008)
    assert (gated.tied, gated.norm, gated.dropout) == (False, "rms", False)


def test_deepseek_and_llama4_mix_layers() -> None:
    deep = row_model("DeepSeekV3", shape(61, 7168, 128, 128, 2048, 129280, 256, 8))
    assert isinstance(deep.layers[0].attention, LatentAttention)
    assert [isinstance(layer.mlp, Experts) for layer in deep.layers[:5]] == [False] * 3 + [True] * 2
    four = row_model("Llama4-Maverick-400B", shape(48, 5120, 40, 8, 8192, 202048, 128, 1))
    assert [isinstance(layer.mlp, Experts) for layer in four.layers[:4]] == [False, True] * 2


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("GPT", (None, 1024, None, None, 4096, None, None, None), "layers, heads not given"),
        ("Qwen3-Next-80B-A3B", (48, 2048, 16, 2, 512, None, 512, 10), "hybrid attention"),
    ],
)
def test_rows_without_a_shape_say_why(
    name: str, numbers: tuple[int | None, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        row_model(name, shape(*numbers))
