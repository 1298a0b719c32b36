"""The same training with PyTorch's own pipeline runtime and an order from debubble.

debubble export zb-v -p 4 -m 8 --to torch-csv -o zbv.csv
torchrun --nproc-per-node 4 examples/train/plain_torch.py zbv.csv
"""

import sys

import torch
import torch.distributed as dist
from data import batch
from models import TOKENS, build, loss_fn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

import debubble as db
import debubble.torch as dt

MICROBATCHES, ROWS, RATE = 8, 2, 1e-3


def main(path, steps=200):
    """Train a Llama; PyTorch has no tied weights and no losses of single stages."""
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device("cpu")
    order = db.load(path)
    modules = dt.split(build("llama"), order.stages)
    here = order.placement.stages_on(rank)
    stages = [PipelineStage(modules[stage], stage, order.stages, device) for stage in here]
    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss_fn)
    schedule._load_csv(path)
    weights = [weight for stage in here for weight in modules[stage].parameters()]
    optimizer = torch.optim.AdamW(weights, lr=RATE)
    for step in range(steps):
        x, y = batch(step, ROWS * MICROBATCHES, TOKENS)
        losses = []
        first, last = 0 in here, order.stages - 1 in here
        schedule.step(*([x] if first else []), target=y if last else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if losses and step % 10 == 0:
            print(f"step {step:4}  loss {torch.stack(losses).mean():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
