"""Times of matrix products, attention and decoder layers on this machine's GPU, as JSON lines.

    python benchmarks/gpu_layers.py [--part NAME ...] > rows.jsonl
    python benchmarks/gpu_layers.py --predicted rows.jsonl --gpu h100

Parts: `products`, `attention`, `traffic`, `layers` (eager), `graphs` (the same without the host),
`full` (steps close to the memory's limit). Measuring needs CUDA and nothing of this package. With
`--predicted` the planner's times of what was measured come next to it, before any efficiency.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

REPEATS = 20


def say(**row: object) -> None:
    """Print one measurement."""
    print(json.dumps(row), flush=True)


def seconds(run, repeats: int = REPEATS) -> float:
    """Return the median seconds of a call on the device, each with an idle device before it."""
    import torch

    for _ in range(3):
        run()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return sorted(found)[len(found) // 2]


def products() -> None:
    """Measure bf16 products of layers' shapes."""
    import torch

    for m, n, k in [
        (8192, 8192, 8192), (8192, 6144, 4096), (8192, 4096, 4096), (8192, 28672, 4096),
        (8192, 4096, 14336), (8192, 2560, 8192), (8192, 8192, 2048), (8192, 14336, 8192),
        (8192, 8192, 7168), (4096, 6144, 4096), (4096, 28672, 4096), (2048, 28672, 4096),
        (1024, 28672, 4096), (512, 28672, 4096), (8192, 128256, 4096), (2048, 2560, 8192),
    ]:  # fmt: skip
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        took = seconds(lambda a=a, b=b: torch.nn.functional.linear(a, b))
        say(part="product", m=m, n=n, k=k, seconds=took, tflops=2e-12 * m * n * k / took)


def attention() -> None:
    """Measure causal attention forward and backward, by kernel."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for rows, heads, kv, length, width in [
            (1, 32, 8, 8192, 128), (2, 32, 8, 4096, 128), (8, 32, 8, 1024, 128),
            (1, 8, 2, 8192, 128), (4, 32, 32, 2048, 64), (1, 32, 8, 32768, 128),
        ]:  # fmt: skip
            shape = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
            q = torch.randn(rows, heads, length, width, **shape)
            k, v = (torch.randn(rows, kv, length, width, **shape) for _ in range(2))

            def forward(q=q, k=k, v=v):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True
                )

            try:
                with sdpa_kernel(kernel):
                    out = forward()
                    grad = torch.randn_like(out)
                    ahead = seconds(forward)
                    back = seconds(
                        lambda out=out, q=q, k=k, v=v, grad=grad: torch.autograd.grad(
                            out, (q, k, v), grad, retain_graph=True
                        )
                    )
            except RuntimeError as error:
                say(part="attention", kernel=kernel.name, error=str(error)[:100])
                continue
            flops = 2 * rows * heads * length * length * width  # the causal half of two products
            say(part="attention", kernel=kernel.name, rows=rows, heads=heads, kv=kv, length=length,
                width=width, forward=ahead, backward=back, tflops_forward=flops / ahead * 1e-12,
                tflops_backward=2.5 * flops / back * 1e-12)  # fmt: skip


def traffic() -> None:
    """Measure kernels that do little but move bytes."""
    import torch

    for numbers in (8192 * 4096, 8192 * 14336, 8192 * 65536):
        x, y = (torch.randn(numbers, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        took = seconds(lambda x=x, y=y: torch.add(x, y))
        say(part="traffic", name="add", bytes=6 * numbers, seconds=took, gb=6e-9 * numbers / took)
        took = seconds(lambda x=x, y=y: x.copy_(y))
        say(part="traffic", name="copy", bytes=4 * numbers, seconds=took, gb=4e-9 * numbers / took)
        rows = x.view(-1, 4096)
        took = seconds(lambda rows=rows: torch.nn.functional.rms_norm(rows, (4096,)))
        say(part="traffic", name="rms_norm", bytes=4 * numbers, seconds=took,
            gb=4e-9 * numbers / took)  # fmt: skip


def layer(hidden: int, heads: int, kv: int, width: int, feed: int):
    """Return a decoder layer, or one rank's part of it."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.qkv = nn.Linear(hidden, (heads + 2 * kv) * width, bias=False)
            self.out = nn.Linear(heads * width, hidden, bias=False)
            self.up = nn.Linear(hidden, 2 * feed, bias=False)
            self.down = nn.Linear(feed, hidden, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, length, _ = x.shape
            qkv = self.qkv(self.first(x)).view(rows, length, -1, width).transpose(1, 2)
            q, k, v = qkv.split((heads, kv, kv), 1)
            mixed = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
            gate, up = self.up(self.second(x)).chunk(2, -1)
            return x + self.down(nn.functional.silu(gate) * up)

    return Layer().to(device="cuda", dtype=torch.bfloat16)


SHAPES = {
    "8b": (4096, 32, 8, 128, 14336),
    "70b/tp4": (8192, 16, 2, 128, 7168),
    "70b/tp8": (8192, 8, 1, 128, 3584),
    "1b": (2048, 32, 8, 64, 8192),
}
SIZES = [(1, 8192), (1, 4096), (1, 2048), (1, 512), (1, 128), (4, 2048)]
DEPTH = 4


def kernels_of(run) -> int:
    """Return the kernels that a call starts."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
    return sum("Mem" not in event.name for event in seen.events())


def layers(graphs: bool = False) -> None:
    """Measure forward and backward of layers, as the host starts them or as a CUDA graph."""
    import torch

    for name, shape in SHAPES.items():
        stack = torch.nn.Sequential(*(layer(*shape) for _ in range(DEPTH)))
        for parameter in stack.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for rows, length in SIZES:
            x = torch.randn(rows, length, shape[0], device="cuda", dtype=torch.bfloat16,
                            requires_grad=True)  # fmt: skip
            grad = torch.randn_like(x)

            def both(x=x, grad=grad, stack=stack):
                stack(x).backward(grad)

            def forward(x=x, stack=stack):
                with torch.no_grad():
                    stack(x)

            row = {"part": "layer", "model": name, "rows": rows, "length": length}
            if graphs:
                found = []
                for run in (forward, both):
                    side = torch.cuda.Stream()
                    with torch.cuda.stream(side):
                        for _ in range(3):
                            run()
                    torch.cuda.synchronize()
                    captured = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(captured):
                        run()
                    found.append(seconds(captured.replay))
                say(**row, host=False, forward=found[0] / DEPTH,
                    backward=(found[1] - found[0]) / DEPTH)  # fmt: skip
                continue
            ahead, total = seconds(forward), seconds(both)
            say(**row, host=True, forward=ahead / DEPTH, backward=(total - ahead) / DEPTH,
                kernels_forward=kernels_of(forward) / DEPTH,
                kernels_both=kernels_of(both) / DEPTH)  # fmt: skip


def full() -> None:
    """Measure steps whose microbatches leave less and less memory free, in the order of 1F1B."""
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    say(part="memory", free=free, total=total,
        properties=torch.cuda.get_device_properties(0).total_memory)  # fmt: skip
    stack = torch.nn.Sequential(*(layer(*SHAPES["8b"]) for _ in range(8)))
    for parameter in stack.parameters():
        parameter.grad = torch.zeros_like(parameter)
    in_flight = 4

    def step(lengths: list[int]) -> None:
        waiting = []
        for length in lengths:
            x = torch.randn(1, length, 4096, device="cuda", dtype=torch.bfloat16,
                            requires_grad=True)  # fmt: skip
            waiting.append(stack(x))
            if len(waiting) == in_flight:
                waiting.pop(0).sum().backward()
        for out in waiting:
            out.sum().backward()
        torch.cuda.synchronize()

    same = [8192] * 16
    varied = [8192 - 320 * (7 * k % 12) for k in range(16)]
    for name, lengths in (("same", same), ("varied", varied)):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step(lengths)
        step(lengths)
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        say(part="full", lengths=name, allocated=peak, reserved=reserved)
        for share in (0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0):
            gc.collect()
            torch.cuda.empty_cache()
            room = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
            ballast = int(room * share) - peak
            if ballast < 0:
                continue
            held = torch.empty(ballast, device="cuda", dtype=torch.uint8)
            row = {"part": "full", "lengths": name, "share": share}
            before = torch.cuda.memory_stats()["num_alloc_retries"]
            try:
                step(lengths)
                took = []
                for _ in range(3):
                    begin = time.perf_counter()
                    step(lengths)
                    took.append(time.perf_counter() - begin)
                retries = torch.cuda.memory_stats()["num_alloc_retries"] - before
                say(**row, seconds=sorted(took)[1], retries=retries)
            except torch.cuda.OutOfMemoryError:
                say(**row, seconds=None, retries="out of memory")
            del held


def predict(path: str, name: str) -> None:
    """Print the planner's times over those that were measured."""
    from dataclasses import replace

    from debubble.planner.candidate import Candidate, Degrees, Training
    from debubble.planner.case import Case
    from debubble.planner.cost.layer_work import Times, module_times
    from debubble.planner.frameworks.torch.runtime import TORCH
    from debubble.planner.hardware.cluster import Cluster, find_gpu
    from debubble.planner.hardware.kernel_times import LAUNCH, attention_time, product_time
    from debubble.planner.model.files import read_model

    gpu, model = find_gpu(name), read_model("llama-3.1-8b")
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        if row["part"] == "product":
            m, n, k = row["m"], row["n"], row["k"]
            ratio = product_time(gpu, "bf16", m, n, k) / row["seconds"]
            print(f"product {m} × {n} × {k}: {ratio:.2f}")
        elif row["part"] == "attention" and "error" not in row:
            kernel, length = row["kernel"].split("_")[0].lower(), row["length"]
            flops = 2 * row["rows"] * row["heads"] * length**2 * row["width"]
            for way, factor in (("forward", 1.0), ("backward", 2.5)):
                took = attention_time(
                    gpu, factor * flops, backward=factor > 1, portable=kernel == "flash"
                )
                ratio = (took + LAUNCH) / row[way]
                shape = f"{row['heads']} heads, {length} tokens"
                print(f"attention ({kernel}) {shape}, {way}: {ratio:.2f}")
        elif row["part"] == "layer":
            hidden, heads, kv, width, feed = SHAPES[row["model"]]
            layer = model.layers[0]
            layer = replace(
                layer, mlp=replace(layer.mlp, width=feed),
                attention=replace(layer.attention, heads=heads, kv_heads=kv, head_dim=width),
            )  # fmt: skip
            training = Training(
                row["rows"], row["length"], runtime=TORCH, gradient_bytes=2, fused=False
            )
            candidate = Candidate(Degrees(), row["rows"], 1, "1f1b", (1,))
            one = replace(model, hidden=hidden, layers=(layer,))
            times = module_times(Case(one, Cluster(gpu, 1), training, candidate), layer)
            total = sum(times.values(), Times())
            host = "host" if row["host"] else "graph"
            print(f"layer {row['model']}, {row['rows']} × {row['length']}, {host}: forward "
                  f"{total.F / row['forward']:.2f}, backward "
                  f"{(total.I + total.W) / row['backward']:.2f}")  # fmt: skip


PARTS = {
    "products": products, "attention": attention, "traffic": traffic, "layers": layers,
    "graphs": lambda: layers(graphs=True), "full": full,
}  # fmt: skip


def main() -> None:
    """Measure all parts, or those named."""
    parser = argparse.ArgumentParser(description="Times of layers on this machine's GPU.")
    parser.add_argument("--part", action="append", choices=PARTS, metavar="NAME")
    parser.add_argument("--predicted", metavar="ROWS.jsonl")
    parser.add_argument("--gpu", default="h100", metavar="NAME")
    words = parser.parse_args()
    if words.predicted:
        predict(words.predicted, words.gpu)
        return
    parts = words.part or list(PARTS)
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return
    say(part="device", name=torch.cuda.get_device_name(0), torch=torch.__version__)
    for part in parts:
        try:
            PARTS[part]()
        except RuntimeError as error:
            say(part=part, error=str(error)[:300])
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
