"""Whether a stage's backward can come in two parts, I and W, without computing anything twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge


def why_fused(module: nn.Module) -> str:
    """Why the backward of a module is one piece, as far as the module says; empty if it is not."""
    from torch._dynamo.eval_frame import OptimizedModule
    from torch.nn.parallel import DistributedDataParallel

    for part in module.modules():
        if isinstance(part, OptimizedModule) or part._compiled_call_impl is not None:
            return "it is compiled, and a compiled backward is one piece"
        if isinstance(part, DistributedDataParallel):
            return "DistributedDataParallel takes gradients from whole backwards only"
    return ""


def why_fused_graph(roots: Sequence[Tensor], inputs: Sequence[Tensor]) -> str:
    """Why the backward from `roots` to `inputs` is one piece, as far as autograd's graph says.

    A custom ``autograd.Function`` computes all its gradients whenever it runs. One that leads to
    an input and to weights would run in I and again in W.
    """
    starts = [get_gradient_edge(root).node for root in roots]
    order = list(_after_their_children(starts))
    ends = {get_gradient_edge(tensor).node for tensor in inputs}
    onward: set[Node] = set()
    weights: set[Node] = set()
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        if node in ends:
            onward.add(node)
            continue
        if any(child in onward for child in children):
            onward.add(node)
        if hasattr(node, "variable") or any(
            child in weights and child not in onward for child in children
        ):
            weights.add(node)
    for node in order:
        if not isinstance(node, BackwardCFunction):
            continue
        name = node.name().removesuffix("Backward")
        if name == "CheckpointFunction":
            return "it is checkpointed with use_reentrant=True, which takes whole backwards only"
        if node in onward & weights:
            if name == "CompiledFunction":
                return "a part of it is compiled, and a compiled backward is one piece"
            return f"the autograd.Function {name} computes gradients of input and weights at once"
    return ""


def _after_their_children(starts: Iterable[Node]) -> Iterator[Node]:
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(start, False) for start in starts]
    while stack:
        node, left = stack.pop()
        if left:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
