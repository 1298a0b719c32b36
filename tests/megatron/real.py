"""Megatron's own schedules on gloo ranks of this machine, with a model of a few layers."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.torch.world import in_ranks

ROWS, TOKENS, WIDTH = 2, 4, 8
CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Tensors that Megatron makes on the GPU are made on the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device") or "").startswith("cuda"):
            given["device"] = CPU
        return function(*args, **given)


def stand_in_for_gpu() -> None:
    """What Megatron asks of CUDA and Triton and a CPU has not."""
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    # Megatron wraps functions for a GPU when it is imported, for which all of Inductor is loaded.
    torch.compile = lambda function: function  # type: ignore[assignment]
    name = "megatron.core.transformer.moe.ops.paged_stash"
    stash: Any = types.ModuleType(name)
    stash.GLOBAL_BLOCK_SIZE = 1
    stash.paged_stash_copy_kernel = stash.paged_stash_pop_kernel = None
    sys.modules[name] = stash


class Chunk(nn.Module):
    """A model chunk as Megatron's schedules use it."""

    def __init__(self, config: Any, vp_stage: int | None) -> None:
        super().__init__()
        self.config, self.vp_stage, self.model_type = config, vp_stage, "encoder_or_decoder"
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.given: Tensor | None = None

    def set_input_tensor(self, tensors: list[Tensor]) -> None:
        self.given = tensors[0]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.tanh(self.layer(x if self.given is None else self.given))
        return found


STYLES = "operators", "stacks", "named"
"""Folders of profiles: of operators alone, with Python's calls, and with our names."""


def trace(
    wheel: Path, folder: Path, *, ranks: int, chunks: int, microbatches: int
) -> list[list[str]]:
    """Write ``rank-0.json.gz`` … of two steps in a folder of every style.

    Return the calls of every rank in a step, in sequence: that of the model's forward, or of the
    hook of its gradient, as ``0F3`` or ``0B3``.
    """

    def work(rank: int) -> list[str]:
        sys.path.insert(0, str(wheel))
        stand_in_for_gpu()
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.transformer.transformer_config import TransformerConfig
        from torch.profiler import ProfilerActivity, profile

        from debubble.megatron import name_steps

        parallel_state.initialize_model_parallel(1, ranks, chunks if chunks > 1 else None)
        config = TransformerConfig(
            num_layers=ranks * chunks, hidden_size=WIDTH, num_attention_heads=1,
            pipeline_dtype=torch.float32, pipeline_model_parallel_size=ranks,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            microbatch_group_size_per_vp_stage=ranks if chunks > 1 else None, batch_p2p_comm=False,
            use_cpu_initialization=True,
        )  # fmt: skip
        config.deallocate_pipeline_outputs = True
        parts = [Chunk(config, chunk if chunks > 1 else None) for chunk in range(chunks)]
        done: list[str] = []

        def data(stage: int) -> Iterator[tuple[str, Tensor]]:
            for microbatch in range(microbatches):
                yield f"{stage}%s{microbatch}", torch.randn(TOKENS, ROWS, WIDTH)

        def forward(given: Iterator[tuple[str, Tensor]], model: Any) -> Any:
            name, x = next(given)
            output = model(x)
            done.append(name % "F")
            output.register_hook(lambda _: done.append(name % "B"))
            return output, lambda output: (output.mean(), {})

        run = schedules.get_forward_backward_func()

        def step() -> None:
            done.clear()
            given = [data(chunk * ranks + rank) for chunk in range(chunks)]
            run(
                forward_step_func=forward, data_iterator=given if chunks > 1 else given[0],
                model=parts if chunks > 1 else parts[0], num_microbatches=microbatches,
                seq_length=TOKENS, micro_batch_size=ROWS,
            )  # fmt: skip

        with OnCpu():
            step()
            for style in STYLES:
                if style == "named":
                    name_steps()
                cpu = [ProfilerActivity.CPU]
                with profile(activities=cpu, with_stack=style == "stacks") as profiler:
                    for _ in range(2):
                        step()
                        profiler.step()
                (folder / style).mkdir(exist_ok=True)
                profiler.export_chrome_trace(str(folder / style / f"rank-{rank}.json.gz"))
        return done

    return in_ranks(ranks, work)
