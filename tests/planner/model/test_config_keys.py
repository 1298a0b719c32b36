"""Keys of a model's description, one at a time."""

import pytest

from debubble.core.errors import FormatError
from debubble.planner.model.config_keys import HARMLESS, Keys


def test_values_of_each_type():
    keys = Keys(
        {"n": 3, "yes": True, "kind": "a", "kinds": ["a", "b"], "at": [1], "p": 0.0, "null": None},
        "model",
    )
    assert keys.count("n") == 3
    assert keys.count("null", 4) == keys.count("absent", 4) == 4
    assert keys.optional("null") is None
    assert keys.flag("yes")
    assert not keys.flag("absent")
    assert keys.choice("kind", ("a", "b"), "b") == "a"
    assert keys.words("kinds", ("a", "b"), 2) == ["a", "b"]
    assert keys.words("absent", ("a",), 2) is None
    assert keys.indices("at", 2) == {1}
    assert keys.number("p", 0.1) == 0
    assert keys.number("absent", 0.1) == 0.1
    assert keys.first(("absent", "n")) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda keys: keys.count("n", most=2), "n 3; give a whole number from 1 to 2"),
        (lambda keys: keys.count("n_layers"), "no key 'n_layers'.*did you mean 'n_layer'"),
        (lambda keys: keys.flag("n"), "n 3; give true or false"),
        (lambda keys: keys.words("n", ("a",), 2), "n with 3; give 2, one per layer"),
        (lambda keys: keys.indices("n", 2), "3 in n; layers are 0 to 1"),
        (lambda keys: keys.number("kind"), "give a number from 0 up"),
        (lambda keys: keys.first(("n", "n_layer")), "n 3 and n_layer 2, two names of one number"),
        (lambda keys: keys.refuse_unknown(), "unknown key 'n'"),
        (lambda keys: keys.refuse_unknown_shapes("x"), "'n', which could change a shape"),
    ],
)
def test_messages_name_value_limit_and_nearest(call, message):
    keys = Keys({"n": 3, "n_layer": 2, "kind": "a"}, "model")
    with pytest.raises(FormatError, match=f"^model has .*{message}"):
        call(keys)


def test_layers_have_keys_of_their_own():
    keys = Keys(
        {
            "head_dim": 64, "per_layer_config": {"01": {"head_dim": 128}},
            "intermediate_size": [8, 16],
        },
        "model",
    )  # fmt: skip
    assert [keys.of_layer(layer).count("head_dim") for layer in range(3)] == [64, 128, 64]
    assert keys.of_layer(1).count("intermediate_size") == 16
    assert {"head_dim", "per_layer_config"} <= keys.read
    assert keys.on("+absent")
    assert not keys.on("absent")
    assert keys.first(("absent", "head_dim"), same=False) == 64


def test_harmless_keys_are_listed_once_and_ignored():
    listed = [key for keys in HARMLESS.values() for key in keys]
    assert len(listed) == len(set(listed))
    Keys(dict.fromkeys(listed, 1), "model").refuse_unknown_shapes("x")
