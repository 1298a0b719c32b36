"""Bytes of activations against the tensors that PyTorch's autograd saves for a layer."""

import pytest

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.memory.layer_bytes import LOOSE_NORM
from debubble.planner.model.mixers import Attention
from debubble.planner.model.transformer import Layer, Mlp, Model
from tests.planner.cases import layer_activation

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

HIDDEN, SEQUENCE, BATCH = 256, 128, 2


class Block(nn.Module):
    """A decoder layer as a framework writes it, without biases and rotations."""

    def __init__(self, attention, mlp):
        super().__init__()
        self.shape = attention
        query, both = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        linear = {"bias": False, "dtype": torch.bfloat16}
        self.first, self.second = (nn.LayerNorm(HIDDEN, dtype=torch.bfloat16) for _ in range(2))
        self.queries = nn.Linear(HIDDEN, query, **linear)
        self.keys, self.values = (nn.Linear(HIDDEN, both, **linear) for _ in range(2))
        self.out = nn.Linear(query, HIDDEN, **linear)
        self.up = nn.Linear(HIDDEN, mlp.width, **linear)
        self.gate = nn.Linear(HIDDEN, mlp.width, **linear) if mlp.gated else None
        self.down = nn.Linear(mlp.width, HIDDEN, **linear)

    def forward(self, x):
        normed = self.first(x)
        sizes = (self.shape.heads, self.shape.kv_heads, self.shape.kv_heads)
        parts = (self.queries(normed), self.keys(normed), self.values(normed))
        heads = (
            part.unflatten(-1, (size, self.shape.head_dim)).transpose(1, 2)
            for part, size in zip(parts, sizes, strict=True)
        )
        found = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        normed = self.second(x)
        if self.gate is None:
            return x + self.down(functional.gelu(self.up(normed)))
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def saved_bytes(block, x):
    """Bytes of the storages that autograd saves, parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)  # kept, so that none is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x).sum()
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_autograd_saves_what_the_formula_says(gated, kv_heads):
    attention, mlp = Attention(4, kv_heads, 64), Mlp(704, gated)
    layer = Layer(attention, mlp)
    model = Model("block", HIDDEN, (layer,), 512, norm="layer")
    training = Training(BATCH, SEQUENCE, fused=False)
    plan = Candidate(Degrees(), BATCH, 1, "1f1b", (1,))
    expected = layer_activation(model, layer, training, plan).stored
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    found = saved_bytes(Block(attention, mlp), x)
    # Each norm keeps its mean and its deviation for every token, which formulas leave out.
    statistics = BATCH * SEQUENCE * 2 * 2 * 4
    assert expected <= found <= expected + statistics


def test_a_norm_of_single_operations_saves_its_input_in_fp32_and_its_result_before_the_weight():
    norm = LooseNorm()
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    # The root's one number per token is left out.
    per_number = saved_bytes(norm, x) / x.numel()
    assert per_number == pytest.approx(LOOSE_NORM, rel=0.02)
    model = Model("one", HIDDEN, (Layer(Attention(8, 8, 32), Mlp(512)),), 100)
    plan = Candidate(Degrees(), BATCH, 1, "1f1b", (1,))
    fused, loose = (
        layer_activation(
            model, model.layers[0], Training(BATCH, SEQUENCE, fused_norms=each), plan
        ).stored
        for each in (True, False)
    )
    assert loose - fused == 2 * (LOOSE_NORM - 2) * BATCH * SEQUENCE * HIDDEN


class LooseNorm(nn.Module):
    """A norm by root mean square as models' first code has it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN, dtype=torch.bfloat16))

    def forward(self, x):
        wide = x.float()
        root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * root).type_as(x) * self.weight
