"""Train a decoder model in a pipeline, or without one.

torchrun --nproc-per-node 4 examples/train/train.py --schedule zb-v --model llama
python examples/train/train.py --reference --model llama --save alone.pt
torchrun --nproc-per-node 4 examples/train/train.py --schedule zb-v --model llama --compare alone.pt
"""

import argparse
import os

import torch
import torch.distributed as dist
from data import batch
from models import CONFIGS, TOKENS, build, loss_fn

import debubble as db
import debubble.torch as dt

ROWS = 2
"""Sequences of a microbatch."""

RATE = 1e-3


def options():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", default="1f1b", help="a name, or a file such as best.csv")
    parser.add_argument("--model", default="llama", choices=CONFIGS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--chunks", type=int, help="where the schedule leaves a choice")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rate", type=float, default=RATE, help="of AdamW")
    parser.add_argument("--clip", type=float, help="largest norm of the gradients")
    parser.add_argument("--engine", default="auto", choices=["auto", "torch", "debubble"])
    parser.add_argument("--reference", action="store_true", help="train without a pipeline")
    parser.add_argument("--save", metavar="FILE", help="losses and final parameters")
    parser.add_argument("--compare", metavar="FILE", help="those of another run, that it saved")
    return parser.parse_args()


def main():
    """Train, and say how the loss falls."""
    args = options()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    model = build(args.model, getattr(torch, args.dtype))
    losses, state = (without_pipeline if args.reference else in_pipeline)(model, args)
    if state is None:
        return
    if args.save:
        torch.save({"losses": losses, "state": state}, args.save)
    if args.compare:
        compare(losses, state, torch.load(args.compare))


def compare(losses, state, other):
    """Say how far this run is from another one."""
    apart = max(abs(a - b) for a, b in zip(losses, other["losses"], strict=True))
    moved = max((state[name] - value).abs().max().item() for name, value in other["state"].items())
    print(f"last loss {losses[-1]:.6f} and {other['losses'][-1]:.6f}; "
          f"losses at most {apart:.1e} apart, parameters {moved:.1e}")  # fmt: skip


def in_pipeline(model, args):
    """Train on the ranks that torchrun started; on the first one losses and parameters."""
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.schedule.endswith((".csv", ".json")):
        schedule = db.load(args.schedule)
    else:
        schedule = db.make(
            args.schedule, ranks=dist.get_world_size(), microbatches=args.microbatches,
            chunks=args.chunks,
        )  # fmt: skip
    stages = dt.split(model, schedule.stages)
    pipe = dt.Pipeline(
        schedule, lambda number: stages[number].to(args.device), loss_fn, engine=args.engine
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=args.rate)
    losses = []
    for step in range(args.steps):
        x, y = batch(step, ROWS * schedule.microbatches, TOKENS, args.device)
        loss = pipe.step(x, target=y)
        if args.clip:
            pipe.clip_grad_norm_(args.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if dist.get_rank() == 0:
            report(step, losses)
    # Names begin with the number of the stage, and go on with the model's own.
    own = {name.partition(".")[2]: value.cpu() for name, value in pipe.state_dict().items()}
    parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, parts)
    dist.destroy_process_group()
    return losses, parts and {name: value for part in parts for name, value in part.items()}


def without_pipeline(model, args):
    """The same training in one process, with the model as it is."""
    optimizer = torch.optim.AdamW(model.to(args.device).parameters(), lr=args.rate)
    losses = []
    for step in range(args.steps):
        x, y = batch(step, ROWS * args.microbatches, TOKENS, args.device)
        total = 0.0
        for part, target in zip(x.split(ROWS), y.split(ROWS), strict=True):
            output = model(part, use_cache=False)
            loss = loss_fn(output.logits, target)
            if "aux_loss" in output:
                loss = loss + model.config.router_aux_loss_coef * output.aux_loss
            loss = loss / args.microbatches
            loss.backward()
            total += loss.item()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        report(step, losses)
    return losses, model.cpu().state_dict()


def report(step, losses):
    """Every tenth loss, and the last."""
    if step % 10 == 0:
        print(f"step {step:4}  loss {losses[-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
