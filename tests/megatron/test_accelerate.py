"""Accelerate's Megatron plugin asks for Megatron's function at every step, so that it gets ours."""

from __future__ import annotations

import ast

import pytest

from tests import wheels

VERSION = "1.15.0"
NAME = "get_forward_backward_func"


def test_it_is_looked_up_at_every_step(request: pytest.FixtureRequest) -> None:
    wheel = wheels.fetch(wheels.folder_of(request, "accelerate"), "accelerate", VERSION)
    tree = ast.parse((wheel / "accelerate/utils/megatron_lm.py").read_text(encoding="utf-8"))
    calls = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == NAME
    }
    assert calls == {"train_step", "eval_step"}
