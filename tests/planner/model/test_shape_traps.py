"""Sizes that matrix units handle badly."""

from dataclasses import replace

from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention, Recurrence
from debubble.planner.model.shape_traps import shape_traps
from debubble.planner.model.transformer import Layer, Mlp, Model


def dense(width=10944, heads=32, head_dim=128, hidden=4096, vocabulary=32000):
    layer = Layer(Attention(heads, heads, head_dim), Mlp(width))
    return Model("dense", hidden, (layer,) * 4, vocabulary)


def test_models_in_use_have_few():
    for name in ("llama-3.1-8b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "mixtral-8x7b"):
        assert shape_traps(read_model(name)) == (), name


def test_measured_traps_are_named_with_the_nearest_sizes():
    (found,) = shape_traps(dense(width=10922))
    assert "10922" in found
    assert "10880 or 10944 would do" in found
    assert shape_traps(dense()) == ()
    (found,) = shape_traps(dense(hidden=13824, heads=128, head_dim=108))
    assert "108 channels" in found
    assert "104 or 112" in found
    assert shape_traps(dense(hidden=13824, heads=64, head_dim=216)) == ()


def test_what_was_assumed_comes_first_and_states_have_no_heads():
    model = dense(width=10922)
    odd = replace(model.layers[0], attention=Recurrence(10, 1, 1, 64, 64))
    found = shape_traps(replace(model, layers=(odd,), assumed=("the tower is left out",)))
    assert found[0] == "the tower is left out"
    assert len(found) == 2


def test_tensor_parallelism_divides_widths():
    model = read_model("llama-2-7b")
    assert shape_traps(model) == shape_traps(model, 4) == ()
    (found,) = shape_traps(model, 8)
    assert "over tp 8" in found
    assert "10752 or 11264" in found


def test_experts_vocabulary_and_hidden_size():
    model = read_model("qwen3-30b-a3b")
    layer = replace(model.layers[0], mlp=replace(model.layers[0].mlp, width=760, shared_width=100))
    found = shape_traps(replace(model, layers=(layer,) * 3, hidden=2050, vocabulary=50257))
    assert len(found) == 4
    assert "Megatron-LM does; 50304 would do" in found[-1]
