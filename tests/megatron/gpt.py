"""Real GPT models of megatron-core on gloo ranks of this machine, and what a step of them gives.

A test names jobs, starts their ranks once, and compares steps by some callable with those by
Megatron's own function::

    def work(rank):
        job = gpt.Job(chunks=2)
        wanted = gpt.Training(job).step()
        found = gpt.Training(job).step(callable_that_is_tested)
        return gpt.apart(found, wanted)

    gpt.in_ranks_of(wheel, 2, work)

Weights are drawn by their names in the whole model, so jobs that cut it otherwise have the same
model, and their gradients have the same names.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch import distributed as dist

from tests import wheels
from tests.megatron.real import OnCpu, stand_in_for_gpu
from tests.planner.megatron import OF_ANOTHER_PYTHON
from tests.torch.world import in_ranks, report_progress

RELEASES = "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2"
"""The newest of every minor release that our callable knows."""

VOCABULARY, TOKENS, ROWS = 64, 12, 2


def fetch(folder: Path, version: str) -> Path:
    """A release of megatron-core, unpacked."""
    return wheels.fetch(folder, "megatron-core", version, *OF_ANOTHER_PYTHON)


def in_ranks_of(wheel: Path, ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work` in ranks that have this release, which is imported once for all of them."""

    def load() -> None:
        with megatron(wheel):
            for name in ("models.gpt.gpt_model", "optimizer", "distributed"):
                importlib.import_module(f"megatron.core.{name}")
            import debubble.megatron as dm

            dm.install  # noqa: B018

    def there(rank: int) -> Any:
        with megatron(wheel):
            return work(rank)

    return in_ranks(ranks, there, load=load)


@contextmanager
def megatron(wheel: Path) -> Iterator[None]:
    """Have this release, which is imported once in a process, run on the CPU."""
    if str(wheel) not in sys.path:
        sys.path.insert(0, str(wheel))
        stand_in_for_gpu()
        _stand_in_for_stash(wheel)
        _stand_in_for_more()
    with OnCpu():
        yield


def _stand_in_for_stash(wheel: Path) -> None:
    """Release 0.18 imports Triton for a stash that is off."""
    name = "megatron.core.transformer.moe.paged_stash"
    file = wheel / f"{name.replace('.', '/')}.py"
    if file.exists() and "\nimport triton\n" in file.read_text(encoding="utf-8"):
        sys.modules[name] = mock.MagicMock()


def _stand_in_for_more() -> None:
    """What whole models and optimizers ask of a GPU, of Transformer Engine, and of Python 3.12."""
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[assignment, method-assign]
    plain = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *to, **how: (  # type: ignore[assignment, method-assign]
        plain(tensor, *to, **how) if to or how else f"torch.cuda.{plain(tensor).split('.')[-1]}"
    )
    torch.cuda.FloatTensor = torch.FloatTensor  # type: ignore[misc, assignment]
    torch.cuda.IntTensor = torch.IntTensor  # type: ignore[misc, assignment]
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: Stream()  # type: ignore
    torch.cuda.Stream = Stream  # type: ignore[misc, assignment]
    torch.cuda.stream = lambda _: nullcontext()  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    # Without Transformer Engine releases before 0.17 leave this name out, and use it.
    moe: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe, "te_general_gemm"):
        moe.te_general_gemm = None
    _stand_in_for_norm(importlib.import_module("megatron.core.transformer.torch_norm"))
    _keep_groups(importlib.import_module("megatron.core.parallel_state"))


def _keep_groups(module: Any) -> None:
    """Let jobs take the process groups of those before that have the same ranks and purpose.

    Megatron forgets groups and ends none. Gloo's threads of each look for work a hundred times a
    second: after some dozen jobs that takes most of the time.
    """
    own: Callable[..., Any] = module.create_group
    kept: dict[str, Any] = {}

    def create(ranks: Sequence[int], **options: Any) -> Any:
        key = repr((list(ranks), sorted(options.items())))
        if key not in kept:
            kept[key] = own(ranks, **options)
        return kept[key]

    module.create_group = create


def _stand_in_for_norm(module: Any) -> None:
    """PyTorch's norm under sequence parallelism, which Megatron leaves to Apex's and TE's.

    As there, its weights are marked, so that their gradients are summed over tensor ranks.
    """
    own = module.WrappedTorchNorm.__new__

    def make(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = own(cls, plain, *args, **kwargs)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel
        return norm

    module.WrappedTorchNorm.__new__ = make


class Stream:
    """A stream of a GPU, where everything has been done once it is called."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """A model, how it is cut, and how it is trained. Sizes are those of the smallest that tell."""

    layers: int = 4
    chunks: int = 1
    microbatches: int = 4
    replicas: int = 1
    tensor: int = 1
    """Tensor-parallel ranks."""
    experts: int = 0
    tied: bool = False
    mtp: int = 0
    positions: str = "learned_absolute"
    recompute: bool = False
    ddp: Mapping[str, Any] | None = None
    """Options of DistributedDataParallelConfig; None has gradients in ``.grad``."""
    optimizer: bool = False
    """Whether a step ends with Megatron's Adam; it needs `ddp`."""
    per_token: bool = False
    """Whether the loss is a mean over the tokens that count, whose numbers differ."""
    lengths: Sequence[int] = ()
    """Tokens of sequences of microbatches by turns; none has all of the same length."""
    drawn: bool = True
    """Whether weights are drawn by their names; else they are as Megatron makes them."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of TransformerConfig."""

    @property
    def ranks(self) -> int:
        return dist.get_world_size() // self.replicas // self.tensor


@dataclass(frozen=True)
class Step:
    """What a step of a job gave: the same on every rank."""

    losses: list[dict[str, Any]]
    """What the loss function returned for the record, of one microbatch after the other."""
    gradients: dict[str, Tensor]
    """Of all weights by their names in the whole model; copies of tied ones have their own."""
    weights: dict[str, Tensor]
    """After the optimizer's step."""


def apart(found: Step, wanted: Step) -> tuple[float, str]:
    """The largest relative difference of two steps, and what has it."""
    worst = (0.0, "")
    pairs: list[tuple[str, Any, Any]] = []
    assert len(found.losses) == len(wanted.losses), (len(found.losses), len(wanted.losses))
    for index, (mine, theirs) in enumerate(zip(found.losses, wanted.losses, strict=True)):
        assert mine.keys() == theirs.keys()
        pairs += [(f"{key} of microbatch {index}", mine[key], theirs[key]) for key in mine]
    for kind in ("gradients", "weights"):
        one, other = getattr(found, kind), getattr(wanted, kind)
        assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
        pairs += [(f"{kind} of {name}", one[name], other[name]) for name in one]
    for name, mine, theirs in pairs:
        if (mine is None) != (theirs is None):
            return float("inf"), name
        if mine is None:
            continue
        a, b = torch.as_tensor(mine).double(), torch.as_tensor(theirs).double()
        difference = float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
        if not difference <= worst[0]:
            worst = difference, name
    return worst


class Training:
    """The chunks of a job's model on this rank."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.config = _config(job)
        _start_parallel(job)
        from megatron.core import parallel_state

        self.rank = parallel_state.get_pipeline_model_parallel_rank()
        self.replica = parallel_state.get_data_parallel_rank()
        self.shard = parallel_state.get_tensor_model_parallel_rank()
        self.names: list[dict[str, str]] = []
        self.chunks = [self._chunk(chunk) for chunk in range(job.chunks)]
        self.optimizer = _connect(self.config, self.chunks, job) if job.ddp is not None else None

    def _chunk(self, chunk: int) -> Any:
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
        )

        job = self.job
        model = _model(job, self.config, chunk)
        names = {name: whole_name(name, model) for name, _ in model.named_parameters()}
        if job.drawn:
            for name, weight in model.named_parameters():
                shard = self.shard if getattr(weight, "tensor_model_parallel", False) else 0
                draw(weight, names[name], job.tied, shard)
        self.names.append(names)
        if job.ddp is None:
            return model
        options = DistributedDataParallelConfig(**{"grad_reduce_in_fp32": True, **job.ddp})
        return DistributedDataParallel(
            self.config,
            options,
            model,
            disable_bucketing=chunk > 0 and "bucket_size" not in job.ddp,
        )

    def step(self, function: Callable[..., Any] | None = None, **keywords: Any) -> Step:
        """One step, by Megatron's own function when none is given; or one of evaluation."""
        report_progress()
        job = self.job
        if function is None:
            from megatron.core.pipeline_parallel import schedules

            function = schedules.get_forward_backward_func()
        for chunk in self.chunks:
            chunk.zero_grad_buffer() if job.ddp is not None else chunk.zero_grad(set_to_none=True)
        if self.optimizer:
            self.optimizer.zero_grad()
        count = keywords.pop("microbatches", job.microbatches)
        given = [iter(batches(job, self.replica, count)) for _ in self.chunks]
        many = job.chunks > 1
        losses = function(
            forward_step_func=keywords.pop("forward_step", partial(forward_step, job)),
            data_iterator=given if many else given[0],
            model=self.chunks if many else self.chunks[0], num_microbatches=count,
            seq_length=TOKENS, micro_batch_size=ROWS, **keywords,
        )  # fmt: skip
        gradients = self._gathered(_gradient)
        if self.optimizer and not keywords.get("forward_only"):
            self.optimizer.step()
        return Step(self._reported(losses), gradients, self.weights())

    def weights(self) -> dict[str, Tensor]:
        """All weights by their names in the whole model."""
        return self._gathered(lambda weight: weight.data)

    def save(self, folder: Path) -> None:
        """Write a checkpoint of the model, as ``--ckpt-format torch_dist`` does."""
        import multiprocessing

        from megatron.core import dist_checkpointing

        # It writes in processes of its own, which those of the tests may not have.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        dist_checkpointing.save(self._state(), str(folder))

    def load(self, folder: Path) -> None:
        """Take the weights of a checkpoint."""
        from megatron.core import dist_checkpointing

        found = dist_checkpointing.load(self._state(), str(folder))
        for name, chunk in enumerate(self.chunks):
            _plain(chunk).load_state_dict(found[f"model{name}"])

    def _state(self) -> dict[str, Any]:
        parts = enumerate(map(_plain, self.chunks))
        return {f"model{index}": part.sharded_state_dict() for index, part in parts}

    def _gathered(self, of_weight: Callable[[Any], Tensor | None]) -> dict[str, Tensor]:
        """What all weights of this replica's ranks have, by their names in the whole model."""
        mine: dict[str, Any] = {}
        for chunk, names in zip(self.chunks, self.names, strict=True):
            for name, weight in _plain(chunk).named_parameters():
                found = of_weight(weight)
                # Arrays are read back in a fifth of the time that tensors take.
                part = f"/{self.shard}" if self.job.tensor > 1 else ""
                mine[names[name] + part] = None if found is None else found.detach().numpy()
        both: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(both, (self.replica, mine))
        return {
            name: None if value is None else torch.from_numpy(value)
            for replica, part in both if replica == self.replica
            for name, value in part.items()
        }  # fmt: skip

    def _reported(self, losses: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The losses of all replicas, from the rank whose losses Megatron's loops report."""
        both: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(both, (self.rank, losses))
        return [
            loss for rank, part in both if rank == self.job.ranks - 1 for loss in part
        ]  # fmt: skip


def whole_name(name: str, chunk: Any) -> str:
    """A weight's name in the whole model, by the numbers that its chunk's layers have."""
    return re.sub(
        r"^decoder\.layers\.(\d+)",
        lambda m: f"decoder.layers.{chunk.decoder.layers[int(m[1])].layer_number - 1}", name,
    )  # fmt: skip


def draw(weight: Tensor, name: str, tied: bool, shard: int = 0) -> None:
    """Fill a weight with numbers that its name and shard alone decide."""
    if "word_embeddings" in name or (tied and name == "output_layer.weight"):
        name = "word_embeddings"
    if "position_embeddings" in name:
        name = "position_embeddings"
    numbers = torch.Generator().manual_seed(zlib.crc32(name.encode()) + shard)
    wide = 0.1 if weight.ndim > 1 else 0.05
    middle = 1.0 if "norm" in name and name.endswith("weight") else 0.0
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=numbers) * wide + middle)


def batches(job: Job, replica: int, count: int) -> Iterator[dict[str, Tensor]]:
    """The microbatches of a replica. The tokens that count differ in number."""
    numbers = torch.Generator().manual_seed(replica)
    for index in range(count):
        length = job.lengths[index % len(job.lengths)] if job.lengths else TOKENS
        tokens = torch.randint(0, VOCABULARY, (ROWS, length + 1), generator=numbers)
        mask = torch.ones(ROWS, length)
        mask[0, : index % 3] = 0.0
        yield {"tokens": tokens[:, :-1], "labels": tokens[:, 1:].contiguous(), "mask": mask}


def forward_step(job: Job, given: Iterator[dict[str, Tensor]], model: Any, *_: Any) -> Any:
    """What a training script writes: an output, and a function that makes a loss of it."""
    batch = next(given)
    length = batch["tokens"].shape[1]
    more = {"loss_mask": batch["mask"]} if job.mtp else {}
    output = model(
        batch["tokens"], torch.arange(length)[None].expand(ROWS, length),
        torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1),
        labels=batch["labels"], **more,
    )  # fmt: skip
    return output, partial(loss_of, job, batch["mask"])


def loss_of(job: Job, mask: Tensor, losses: Tensor, non_loss_data: bool = False) -> Any:
    """The loss as ``pretrain_gpt.py`` makes it."""
    if non_loss_data:
        return {"largest": losses.detach().max()}
    total, tokens = (losses.float() * mask).sum(), mask.sum()
    if job.per_token:
        return total, tokens.int(), {"loss": torch.stack([total.detach(), tokens])}
    return total / tokens, {"loss": (total / tokens).detach().clone()}


def _config(job: Job) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    options: dict[str, Any] = {
        "num_layers": job.layers, "hidden_size": 32, "num_attention_heads": 4,
        "ffn_hidden_size": 64, "pipeline_dtype": torch.float32, "params_dtype": torch.float32,
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "bias_dropout_fusion": False,
        "bias_activation_fusion": False, "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False, "persist_layer_norm": False,
        "use_cpu_initialization": True, "perform_initialization": not job.drawn,
        "tensor_model_parallel_size": job.tensor, "batch_p2p_comm": False,
        "pipeline_model_parallel_size": job.ranks,
        "deallocate_pipeline_outputs": True, "add_bias_linear": not job.experts,
        "calculate_per_token_loss": job.per_token, "variable_seq_lengths": bool(job.lengths),
        "moe_token_dispatcher_type": "alltoall" if job.lengths else "allgather",
    }  # fmt: skip
    if job.chunks > 1:
        options["virtual_pipeline_model_parallel_size"] = job.chunks
        options["microbatch_group_size_per_vp_stage"] = job.ranks
    if job.experts:
        options |= {
            "num_moe_experts": job.experts, "moe_router_topk": 2, "moe_aux_loss_coeff": 0.05,
            "moe_router_load_balancing_type": "aux_loss",
            "moe_ffn_hidden_size": 32,
        }  # fmt: skip
    if job.mtp:
        options |= {"mtp_num_layers": job.mtp, "mtp_loss_scaling_factor": 0.3}
    if job.recompute:
        options |= {
            "recompute_granularity": "full", "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }  # fmt: skip
    return TransformerConfig(**(options | dict(job.more)))


def _start_parallel(job: Job) -> None:
    """Megatron's process groups for the job, in place of those of the last one."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    parallel_state.destroy_model_parallel()
    chunks = job.chunks if job.chunks > 1 else None
    parallel_state.initialize_model_parallel(job.tensor, job.ranks, chunks)
    random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


def _model(job: Job, config: Any, chunk: int) -> Any:
    """A chunk as ``training.py`` builds it."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs, gpt_model
    from megatron.core.pipeline_parallel import utils

    spec = gpt_layer_specs.get_gpt_layer_local_spec(
        num_experts=job.experts or None, moe_grouped_gemm=False, normalization="LayerNorm"
    )
    vp_stage = chunk if job.chunks > 1 else None
    group = parallel_state.get_pipeline_model_parallel_group()
    size = config.virtual_pipeline_model_parallel_size
    first = utils.is_pp_first_stage(group) and utils.is_vp_first_stage(vp_stage, size)
    last = utils.is_pp_last_stage(group) and utils.is_vp_last_stage(vp_stage, size)
    more: dict[str, Any] = {}
    if job.mtp:
        more["mtp_block_spec"] = gpt_layer_specs.get_gpt_mtp_block_spec(
            config, spec, use_transformer_engine=False, vp_stage=vp_stage
        )
    return gpt_model.GPTModel(
        config, spec, VOCABULARY, 2 * TOKENS, pre_process=first, post_process=last,
        share_embeddings_and_output_weights=job.tied,
        position_embedding_type=job.positions, vp_stage=vp_stage, **more,
    )  # fmt: skip


def _connect(config: Any, chunks: list[Any], job: Job) -> Any:
    """Set what ``training.py`` sets of a config for DDP; the optimizer, if the job has one."""
    from megatron.core.distributed import finalize_model_grads

    def of_chunks(name: str) -> Any:
        found = [getattr(chunk, name) for chunk in chunks]
        return found if len(found) > 1 else found[0]

    options = chunks[0].ddp_config
    config.finalize_model_grads_func = finalize_model_grads
    if options.overlap_grad_reduce:
        config.no_sync_func = of_chunks("no_sync")
        config.grad_sync_func = of_chunks("start_grad_sync")
    if options.overlap_param_gather:
        config.param_sync_func = of_chunks("start_param_sync")
    if not job.optimizer:
        return None
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    wanted = OptimizerConfig(
        optimizer="adam", lr=1e-2, use_distributed_optimizer=options.use_distributed_optimizer,
        overlap_param_gather=options.overlap_param_gather, clip_grad=1.0,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(wanted, chunks)
    config.grad_scale_func = optimizer.scale_loss
    return optimizer


def _plain(chunk: Any) -> Any:
    """A chunk without the wrapper of DDP."""
    from megatron.core.distributed import DistributedDataParallel

    return chunk.module if isinstance(chunk, DistributedDataParallel) else chunk


def _gradient(weight: Any) -> Tensor | None:
    main: Tensor | None = getattr(weight, "main_grad", None)
    return weight.grad if main is None else main
