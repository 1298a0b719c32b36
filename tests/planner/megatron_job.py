"""Megatron-LM's own parser and checks, in a process of its own: jobs in, what it made of them out.

Reads ``{"wheel": folder, "jobs": [{"words": [...], "gpus": n, "environment": {...}}]}`` from
standard input. Writes one object per job: the values of its arguments and, for each rank and chunk,
layers, and how many come before them; or the error. What needs a GPU or Triton is stood in for.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import types
import typing
import warnings
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    asked = json.load(sys.stdin)
    arguments = load(Path(asked["wheel"]))
    found = []
    for job in asked["jobs"]:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found.append(run(arguments, job))
        except (AssertionError, ValueError, RuntimeError, SystemExit) as error:
            found.append({"error": str(error)})
    json.dump(found, sys.stdout)


def load(wheel: Path) -> Any:
    """The module ``megatron.training.arguments``."""
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(wheel))
    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]

    def stand_in(name: str, **values: Any) -> None:
        module = types.ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module

    def quiet(*words: Any) -> None:
        """Print nothing."""

    stand_in("megatron.core.transformer.moe.ops.paged_stash", __getattr__=quiet)
    stand_in("megatron.training", __path__=[str(wheel / "megatron" / "training")])
    stand_in("megatron.training.global_vars", set_global_variables=quiet)
    stand_in(
        "megatron.training.utils",
        get_device_arch_version=lambda: 9,
        update_use_dist_ckpt=lambda args: setattr(args, "use_dist_ckpt", True),
        is_rank0=lambda: False,
        print_rank_0=quiet,
        warn_rank_0=quiet,
    )
    import torch

    def uncompiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        return function or (lambda later: later)

    torch.compile = uncompiled  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda: (9, 0)
    import megatron.training.arguments as arguments
    from megatron.core.transformer.moe import moe_utils

    # Making the parser takes most of a job. Only the default of `inprocess_active_world_size`
    # depends on the job, and no test is about that.
    parser = arguments.add_megatron_arguments(ArgumentParser(allow_abbrev=False))
    arguments.add_megatron_arguments = lambda _: parser
    for name in ("permute", "permute_with_probs", "sort_chunks_by_index", "unpermute",
                 "sort_chunks_by_index_with_probs"):  # fmt: skip
        setattr(moe_utils, f"fused_{name}", quiet)
    # Transformer Engine is not installed; its versions matter to what is newer than all of this.
    arguments.is_te_min_version = lambda *version, **more: True  # noqa: ARG005
    return arguments


def run(arguments: Any, job: dict[str, Any]) -> dict[str, Any]:
    """What becomes of one job's words."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update({"WORLD_SIZE": str(job["gpus"]), "RANK": "0"} | job["environment"])
    sys.argv = ["pretrain_gpt.py", *job["words"]]
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    if job["gpus"] <= MOST_GPUS:
        split_ranks(args)
    layers, offsets = [], []
    chunks = config.virtual_pipeline_model_parallel_size
    for rank in range(config.pipeline_model_parallel_size):
        stages = [stage(config, rank, chunk, chunks) for chunk in range(chunks or 1)]
        layers.append([count for count, _ in stages])
        offsets.append([before for _, before in stages])
    plain = {
        name: value
        for name, value in vars(args).items()
        if (isinstance(value, int | float | str | list | None) and name != "_")
        or name.endswith("_dtype")
    }
    return {
        "args": json.loads(json.dumps(plain, default=str)), "layers": layers, "offsets": offsets,
        "group": config.microbatch_group_size_per_vp_stage,
    }  # fmt: skip


MOST_GPUS = 128
"""Its groups of ranks are made one by one."""


def split_ranks(args: Any) -> None:
    """Make its groups of ranks, over processes that are not there."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.world_size)
    try:
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size,
            args.pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def stage(config: Any, rank: int, chunk: int, chunks: int | None) -> tuple[int, int]:
    """Layers of one chunk of one rank, and of all stages before it."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    parallel_state.set_virtual_pipeline_model_parallel_world_size(chunks)
    parallel_state.set_pipeline_model_parallel_rank(rank)
    vp_stage = chunk if chunks else None
    count = get_num_layers_to_build(config, vp_stage, rank)
    return count, get_transformer_layer_offset(config, vp_stage, rank)


if __name__ == "__main__":
    main()
