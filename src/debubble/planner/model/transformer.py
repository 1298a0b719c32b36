"""A transformer as the planner knows it: its layers, their shapes and exact parameter counts.

A layer is one or two mixers of tokens (:mod:`debubble.planner.model.mixers`) and a
feed-forward part (:class:`Mlp`, :class:`Experts`). Parameters, FLOPs and
bytes follow from their shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.hashed_once import hashed_once
from debubble.planner.model.mixers import Mixer


@dataclass(frozen=True)
class Mlp:
    """A dense feed-forward part: two matrices, or three where it is `gated`; of width 0, none.

    `vectors` are other parameters, such as those of a norm within it.
    """

    width: int
    gated: bool = True
    bias: bool = False
    vectors: int = 0

    def parameters(self, hidden: int) -> int:
        """Return number of parameters."""
        matrices = 3 if self.gated else 2
        biases = ((matrices - 1) * self.width + hidden) * self.bias
        return matrices * hidden * self.width + biases + self.vectors

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        return (3 if self.gated else 2) * hidden * self.width


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token goes to `top_k` of `count` experts of one `width`.

    `shared_width` is the summed width of the experts that every token meets, `shared_gate` whether
    a learned gate weighs them; `router_bias` is one number per expert (DeepSeek-V3, GPT-OSS),
    `bias` those of the experts' matrices. `latent` is the width to which tokens are projected
    before they go to experts (Nemotron 3), 0 for the hidden size; `vectors` are other parameters.
    A token may go to the experts of `group_top_k` of `groups` only; `scale` multiplies their output
    (DeepSeek-V3).
    """

    count: int
    top_k: int
    width: int
    gated: bool = True
    shared_width: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False
    latent: int = 0
    vectors: int = 0
    groups: int = field(default=1, compare=False)
    group_top_k: int = field(default=1, compare=False)
    scale: float = field(default=1.0, compare=False)

    @property
    def matrices(self) -> int:
        """Matrices of one expert."""
        return 3 if self.gated else 2

    def expert_parameters(self, hidden: int) -> int:
        """Return parameters of one routed expert."""
        hidden = self.latent or hidden
        biases = ((self.matrices - 1) * self.width + hidden) * self.bias
        return self.matrices * hidden * self.width + biases

    def common_parameters(self, hidden: int) -> int:
        """Return parameters that every token meets: router, shared experts and their gate."""
        shared = self.matrices * hidden * self.shared_width + hidden * self.shared_gate
        others = 2 * hidden * self.latent + self.vectors
        return hidden * self.count + self.count * self.router_bias + shared + others

    def parameters(self, hidden: int) -> int:
        """Return number of parameters."""
        return self.count * self.expert_parameters(hidden) + self.common_parameters(hidden)

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that one token is multiplied with, router included."""
        wide = self.top_k * self.width * (self.latent or hidden) + self.shared_width * hidden
        return self.matrices * wide + hidden * (self.count + 2 * self.latent)


@hashed_once
@dataclass(frozen=True)
class Layer:
    """One decoder layer: attention, feed-forward part, and a norm before each.

    Parameters
    ----------
    attention
        What mixes tokens.
    mlp
        The feed-forward part.
    second
        A second mixer of the same input (Falcon-H1).
    norms
        Norms of the residual stream: 2, 1 where both parts share one, 4 with norms after them.
    vectors
        Parameters that belong to neither part.
    """

    attention: Mixer
    mlp: Mlp | Experts
    second: Mixer | None = None
    norms: int = 2
    vectors: int = 0

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All that mixes tokens."""
        return tuple(one for one in (self.attention, self.second) if one and one.heads)

    @property
    def experts(self) -> Experts | None:
        """The experts of a layer that has some."""
        return self.mlp if isinstance(self.mlp, Experts) else None


@hashed_once
@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    Parameters
    ----------
    name
        Name for display.
    hidden
        Width of the residual stream.
    layers
        The decoder layers in order; they may differ.
    vocabulary
        Number of tokens, not padded.
    tied
        True if embedding and head are one matrix.
    norm
        ``"rms"`` (one number per channel), ``"layer"`` (two) or ``"none"``.
    positions
        Learned position vectors, 0 for none.
    mtp
        Layers of multi-token prediction after the last one; each has a projection of twice the
        hidden size and three norms of its own and shares embedding and head.
    dropout
        True if dropout masks are stored.
    first_extra, last_extra
        Other parameters on the first stage, such as embeddings per layer (Gemma 3n), and on the
        last, such as the head's bias.
    rope_theta
        Base of rotary positions, None where it is not known or there are none.
    rope_share
        Share of a head's width that is rotated.
    rope_scaling
        How rotary positions are stretched, by the keys of ``transformers``: ``rope_type``,
        ``factor``, and others of the type; empty where they are not.
    activation
        Activation of the feed-forward parts by its name in ``transformers``, such as ``"silu"``;
        empty where it is not known.
    assumed
        What its description does not say, and was assumed.
    """

    name: str
    hidden: int
    layers: tuple[Layer, ...]
    vocabulary: int
    tied: bool = False
    norm: str = "rms"
    positions: int = 0
    mtp: int = 0
    dropout: bool = False
    first_extra: int = 0
    last_extra: int = 0
    # These change no time and no byte: caches need not tell models apart by them.
    rope_theta: float | None = field(default=None, compare=False)
    rope_share: float = field(default=1.0, compare=False)
    rope_scaling: Mapping[str, Any] = field(default_factory=dict, compare=False)
    activation: str = field(default="", compare=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def without_layers(self) -> Model:
        """The model without layers and name, for looking up results of one layer."""
        return replace(self, name="", layers=())

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, ...], NDArray[np.int64]]:
        """Layers that differ, and the number of each layer among them."""
        numbers = {layer: at for at, layer in enumerate(dict.fromkeys(self.layers))}
        return tuple(numbers), np.array([numbers[layer] for layer in self.layers], dtype=np.int64)

    @cached_property
    def attentions(self) -> tuple[Mixer, ...]:
        """The kinds of attention that its layers have."""
        return tuple(dict.fromkeys(one for layer in self.layers for one in layer.mixers))

    @cached_property
    def experts(self) -> int:
        """Experts of a layer that has some, 0 without."""
        return max(layer.experts.count if layer.experts else 0 for layer in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden * {"none": 0, "rms": 1, "layer": 2}[self.norm]

    def layer_parameters(self, layer: Layer) -> int:
        """Return parameters of one layer with its norms."""
        parts = sum(part.parameters(self.hidden) for part in (*layer.mixers, layer.mlp))
        return parts + layer.norms * self.norm_parameters + layer.vectors

    def expert_parameters(self, layer: Layer) -> int:
        """Return parameters of a layer's routed experts; 0 without."""
        experts = layer.experts
        return 0 if experts is None else experts.count * experts.expert_parameters(self.hidden)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the head alone, also where it is the embedding's matrix."""
        return self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int:
        """Number of parameters without those of multi-token prediction."""
        ends = self.embedding_parameters + self.norm_parameters + self.first_extra + self.last_extra
        ends += 0 if self.tied else self.head_parameters
        return ends + sum(self.layer_parameters(layer) for layer in self.layers)

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token meets, without those of multi-token prediction."""
        found = (layer.experts for layer in self.layers if layer.experts is not None)
        idle = sum((one.count - one.top_k) * one.expert_parameters(self.hidden) for one in found)
        return self.parameters - idle
