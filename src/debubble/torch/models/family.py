"""Names of the parts of a decoder model of transformers: embeddings, layers, norm and head."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError
from debubble.torch.models.modules import evaluating

NAMES = ("layers", "h", "blocks")
"""Names of attributes with lists of layers."""

BY_HAND = "write its stages as modules, and give dt.Pipeline a list of them"
"""Advice on a model that is not cut."""

ON_EVERY_STAGE = "rotary"
"""Part of the name of modules that compute positions for all layers, and have no weights."""

COMPARED = frozenset(
    ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
)  # fmt: skip
"""Model types whose cuts the tests compare with whole models."""


@dataclass(frozen=True)
class Family:
    """Names of the parts of a model inside its body."""

    body: tuple[str, ...]
    """Path of attributes from the model to its body, which has the layers."""
    before: tuple[str, ...]
    """Embeddings and all else that runs before the layers, which only the first stage has."""
    added: frozenset[str]
    """Those of them whose results are added to hidden states, such as embeddings of positions."""
    layers: str
    """The list of layers."""
    after: tuple[str, ...]
    """Norm and all else that runs after the last layer, which only the last stage has."""
    head: str
    """Output layer, next to the body."""
    tuples: bool
    """If a layer returns a tuple, whose first item is the hidden states."""

    def body_of(self, model: Any) -> Any:
        """Return the body of a model."""
        return model.get_submodule(".".join(self.body))


class Absent(nn.Module):
    """Placeholder for a module of another stage; that of a layer may return a tuple."""

    def __init__(self, tuples: bool = False) -> None:
        super().__init__()
        self._tuples = tuples

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return the first argument."""
        return (x,) if self._tuples else x


class AddsNothing(nn.Module):
    """Placeholder for embeddings of positions, which only the first stage adds."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return zero."""
        given = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        return given.new_zeros(())


def kind_of(model: Any) -> str:
    """Return the type of a model, as its config names it."""
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))


def shell_of(module: nn.Module) -> Any:
    """Return a copy of a module with the same children, of which some can be replaced."""
    shell = copy.copy(module)
    for name in ("_parameters", "_buffers", "_modules"):
        vars(shell)[name] = dict(getattr(module, name))
    return shell


def shell_with(module: nn.Module, path: Sequence[str], inner: nn.Module) -> Any:
    """Return a shell of a module in which the part at the end of a path is replaced."""
    if not path:
        return inner
    shell = shell_of(module)
    setattr(shell, path[0], shell_with(getattr(module, path[0]), path[1:], inner))
    return shell


def find_family(model: Any) -> Family:
    """Return the parts of a model; raise ParameterError where it is no row of such parts.

    The body runs once without its layers, on two tokens, which shows what is before and after them.
    """
    kind = kind_of(model)
    path = _path_of_body(model, kind)
    layers = _layers_of(model.get_submodule(".".join(path)))
    head = model.get_output_embeddings()
    heads = [name for name, part in model.named_children() if part is head]
    if not heads:
        raise ParameterError(
            f"a model of type '{kind}' cannot be cut: it has no output layer next to its body; "
            f"{BY_HAND}"
        )
    errors = []
    for tuples in (False, True):
        try:
            ran, added = _run_without_layers(model, path, layers, tuples)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            continue
        before, after = _in_sequence(ran, kind, ".".join(path))
        return Family(path, before, added & set(before), layers, after, heads[0], tuples)
    raise ParameterError(
        f"a model of type '{kind}' cannot be cut: its {'.'.join(path)} does not run without its "
        f"layers ({errors[0]}); {BY_HAND}"
    )


def _path_of_body(model: Any, kind: str) -> tuple[str, ...]:
    """Return the path to the part with the layers, one or two names."""
    if not isinstance(model, nn.Module):
        raise ParameterError(f"a model of type '{kind}' cannot be cut: it is no module")
    if _layers_of(model):
        raise ParameterError(
            f"{type(model).__name__} has no output layer; give the model for causal language "
            "modeling, AutoModelForCausalLM"
        )
    if not hasattr(model, "base_model_prefix"):
        raise ParameterError(
            f"a model of type '{kind}' cannot be cut: it has no parts as those of transformers"
        )
    parts = dict(model.named_children())
    for name, part in parts.items():
        if _layers_of(part):
            return (name,)
        inner = [child for child, deeper in part.named_children() if _layers_of(deeper)]
        if inner:
            others = ", ".join(child for child, _ in part.named_children() if child != inner[0])
            if others:
                raise ParameterError(
                    f"a model of type '{kind}' cannot be cut: its {name} has {others} next to "
                    f"{inner[0]}; {BY_HAND}"
                )
            return name, inner[0]
    places = " or ".join(f"{next(iter(parts), 'model')}.{name}" for name in NAMES)
    raise ParameterError(
        f"a model of type '{kind}' cannot be cut: it has no list of layers at {places}; {BY_HAND}"
    )


LAYERS = ""
"""Stands for the layers among the names of parts that ran."""


def _run_without_layers(
    model: Any, path: tuple[str, ...], layers: str, tuples: bool
) -> tuple[list[str], frozenset[str]]:
    """Return the parts of a body in the sequence in which they ran, and those that are added.

    Raises an error when the body does not run, or returns another shape.
    """
    body = model.get_submodule(".".join(path))
    ran: list[str] = []
    added: set[str] = set()

    def note(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        ran.append(name)
        if given is not None and given.dim() < 3:
            added.add(name)

    shell = shell_of(body)
    empty = [Absent(tuples) for _ in getattr(body, layers)]
    setattr(shell, layers, nn.ModuleList(empty))
    embedding = model.get_input_embeddings()
    parts = {name: part for name, part in body.named_children() if name != layers}
    table = next((name for name, part in parts.items() if part is embedding), "")
    for name, part in parts.items():
        if any(weight.is_meta for weight in (*part.parameters(), *part.buffers())):
            # Masks look at numbers, whichever. Memory that nobody writes to takes no space.
            parts[name] = copy.deepcopy(part).to_empty(device="cpu")
            setattr(shell, name, parts[name])
    device = next(parts[table].parameters()).device if table else embedding.weight.device
    x = torch.zeros(1, 2, dtype=torch.long, device=device)
    with ExitStack() as stack:
        stack.enter_context(evaluating([body]))
        stack.enter_context(torch.no_grad())
        for name, part in [*parts.items(), *((LAYERS, layer) for layer in empty)]:
            hook = part.register_forward_pre_hook(partial(note, name), with_kwargs=True)
            stack.callback(hook.remove)
        whole = shell_with(model, path, shell)
        found = getattr(whole, path[0])(input_ids=x, use_cache=False).last_hidden_state
    if found.shape[:2] != x.shape:
        raise ValueError(f"it returned {list(found.shape)} for {list(x.shape)} tokens")
    return ran, frozenset(added - {table})


def _in_sequence(
    ran: Sequence[str], kind: str, body: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts that ran before the layers, and after them."""
    own = [name for name in ran if ON_EVERY_STAGE not in name]
    first, last = own.index(LAYERS), len(own) - own[::-1].index(LAYERS)
    between = {name for name in own[first:last] if name != LAYERS}
    before, after = (tuple(dict.fromkeys(part)) for part in (own[:first], own[last:]))
    twice = between | (set(before) & set(after))
    if twice or not before:
        what = f"{', '.join(sorted(twice))} runs between" if twice else "nothing runs before"
        raise ParameterError(
            f"a model of type '{kind}' cannot be cut: in its {body} {what} its layers; {BY_HAND}"
        )
    return before, after


def _layers_of(body: nn.Module) -> str:
    """Return the name of a body's list of layers, empty for none."""
    lists = [name for name in NAMES if isinstance(getattr(body, name, None), nn.ModuleList)]
    return lists[0] if lists else ""
