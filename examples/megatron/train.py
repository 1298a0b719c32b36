"""Train a small GPT with experts by Megatron-LM's own training step, in any schedule.

torchrun --nproc-per-node 4 examples/megatron/train.py
torchrun --nproc-per-node 4 examples/megatron/train.py --schedule zb-v --chunks 2
torchrun --nproc-per-node 4 examples/megatron/train.py --schedule best.csv --chunks 2
"""

import argparse
import os
import zlib
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.pipeline_parallel.utils import (
    is_pp_first_stage,
    is_pp_last_stage,
    is_vp_first_stage,
    is_vp_last_stage,
)
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

import debubble.megatron as dm

VOCABULARY, TOKENS, ROWS = 64, 16, 2


def options(words=None):
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", help="a name, or a file such as best.csv; default Megatron's")
    parser.add_argument("--chunks", type=int, default=1, help="model chunks of a rank")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--trace", metavar="FOLDER", help="profile the last step")
    return parser.parse_args(words)


def main(words=None):
    """Train; return the losses, on the last rank."""
    args = options(words)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl")
    several = args.chunks if args.chunks > 1 else None
    parallel_state.initialize_model_parallel(1, dist.get_world_size(), several)
    model_parallel_cuda_manual_seed(1)
    if args.schedule:
        dm.install(args.schedule)  # before the model is built
    if args.trace:
        dm.trace_ranges()

    config = configuration(args, several)
    chunks = [build(config, chunk if several else None) for chunk in range(args.chunks)]
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3), chunks)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss

    losses = []
    for step in range(args.steps):
        with profiled(args.trace if step == args.steps - 1 else None):
            losses.append(train_step(chunks, optimizer, step, args))
    if dist.get_rank() == dist.get_world_size() - 1:
        print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} in step {args.steps}")
    dm.uninstall()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return losses


def train_step(chunks, optimizer, step, args):
    """Megatron's training step; return the mean loss, on the ranks that report it."""
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    run = get_forward_backward_func()
    data = [batches(step, args.microbatches) for _ in chunks]
    several = len(chunks) > 1
    found = run(
        forward_step_func=forward_step,
        data_iterator=data if several else data[0],
        model=chunks if several else chunks[0],
        num_microbatches=args.microbatches,
        seq_length=TOKENS,
        micro_batch_size=ROWS,
    )
    optimizer.step()
    return torch.stack([one["lm loss"] for one in found]).mean().item() if found else None


def configuration(args, several):
    """A GPT with experts in every layer."""
    return TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.hidden,
        num_attention_heads=4,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
        moe_ffn_hidden_size=2 * args.hidden,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
        pipeline_dtype=torch.float32,
        pipeline_model_parallel_size=dist.get_world_size(),
        virtual_pipeline_model_parallel_size=several,
        microbatch_group_size_per_vp_stage=dist.get_world_size() if several else None,
    )


def build(config, vp_stage):
    """A chunk of the model, as Megatron's training.py builds it."""
    group = parallel_state.get_pipeline_model_parallel_group()
    size = config.virtual_pipeline_model_parallel_size
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=config.num_moe_experts, moe_grouped_gemm=False),
        VOCABULARY,
        TOKENS,
        pre_process=is_pp_first_stage(group) and is_vp_first_stage(vp_stage, size),
        post_process=is_pp_last_stage(group) and is_vp_last_stage(vp_stage, size),
        vp_stage=vp_stage,
    )
    draw(model)
    return DistributedDataParallel(config, DistributedDataParallelConfig(), model.cuda())


def draw(model):
    """Draw weights by layer and name, so that every schedule trains the same model."""
    first = model.decoder.layers[0].layer_number
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            words = name.split(".")
            if words[:2] == ["decoder", "layers"]:
                words[2] = str(first + int(words[2]))
            seed = zlib.crc32(".".join(words).encode())
            numbers = torch.Generator().manual_seed(seed)
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=numbers))


def batches(step, count):
    """Microbatches of a step: sequences that count up, from any token."""
    numbers = torch.Generator().manual_seed(step)
    for _ in range(count):
        start = torch.randint(0, VOCABULARY, (ROWS, 1), generator=numbers)
        yield ((start + torch.arange(TOKENS + 1)) % VOCABULARY).cuda()


def forward_step(data, model):
    """Return the output of a chunk, and the function that makes the loss of the last one."""
    tokens = next(data)
    positions = torch.arange(TOKENS, device=tokens.device).expand(ROWS, TOKENS)
    after = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool, device=tokens.device).triu(1)
    output = model(tokens[:, :-1], positions, after, labels=tokens[:, 1:].contiguous())
    return output, loss_of


def loss_of(losses):
    """Return the loss, and what is reported of it."""
    loss = losses.float().mean()
    return loss, {"lm loss": loss.detach().clone()}


@contextmanager
def profiled(folder):
    """Record what runs inside for ``debubble trace``, if there is a folder for it."""
    if folder is None:
        yield
        return
    with torch.profiler.profile() as profiler:
        yield
    Path(folder).mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(Path(folder) / f"rank-{dist.get_rank()}.json.gz"))


if __name__ == "__main__":
    main()
