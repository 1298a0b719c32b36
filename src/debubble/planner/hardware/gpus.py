"""GPUs by short name: dense peaks, memory, links, and the rates that were measured on them.

Peaks, memory and links are the makers' data sheets; best matrix products and bus bandwidths are
those that Stas Bekman's *Machine Learning Engineering* collects (accelerators, MAMF and network
benchmarks). Rates of attention kernels are those of long sequences: H100's were measured
(``benchmarks/gpu_layers_h100.jsonl``), B200's are cuDNN's on DeepSeek-V3's shape (arXiv 2603.07685,
Table 9) and A100's FlashAttention-2's (arXiv 2307.08691) with the same loss on short ones.
Everything is decimal and, for links, one direction of one GPU.

Memory is the part that a process can use: a card of "80 GB" has 80 GiB, less the share of driver
and error correction. NVIDIA's are the capacities that PyTorch reports ("has a total capacity of
79.15 GiB", in public issues and logs; of B300 the data sheet's). AMD's are the data sheets', as
Primus counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from debubble.core.hashed_once import hashed_once

TERA, GIGA = 1e12, 1e9
GIB = 1 << 30


@hashed_once
@dataclass(frozen=True)
class Gpu:
    """One GPU as a process sees it.

    Parameters
    ----------
    name
        Short name.
    bf16, fp8, fp4
        Dense peak of matrix products in FLOP/s; 0 where it has none.
    memory
        Bytes of memory that a process can have.
    bandwidth
        Bytes per second of that memory.
    multiprocessors
        Streaming multiprocessors or compute units: tiles of a product that run at once.
    link
        Bytes per second to all other GPUs of the node together.
    nic
        Bytes per second of its share of the node's network cards.
    host
        Bytes per second between it and its host.
    node
        GPUs that the fast links join.
    peer
        Bytes per second between two GPUs where no switch joins them; 0 with a switch.
    gemm, gemm8
        Share of `bf16` and of `fp8` that the best measured matrix product reaches.
    attention
        FLOP/s of a fused attention kernel's forward and backward, the executed ones.
    ramp
        Tokens of a sequence at which those kernels reach half their rate, forward and backward.
    portable, portable_ramp
        Share of those rates that FlashAttention-2 reaches, which PyTorch brings, and its tokens;
        the others are cuDNN's.
    reduce, gather, exchange
        Share of `link` that large all-reduces in the whole node, all-gathers and all-to-alls reach.
    maker
        Its maker: some frameworks are for one alone.
    sixteen
        Numbers in 16 bits that it multiplies: ``"bf16"`` next to fp16, or ``"fp16"`` alone.
    source
        Source of the numbers, if not the table.
    """

    name: str
    bf16: float
    fp8: float
    memory: float
    bandwidth: float
    multiprocessors: int
    link: float
    nic: float
    host: float
    node: int = 8
    fp4: float = 0.0
    peer: float = 0.0
    gemm: float = 0.8
    gemm8: float = 0.71
    attention: tuple[float, float] = (625 * TERA, 550 * TERA)
    ramp: tuple[float, float] = (550.0, 1150.0)
    portable: float = 1.0
    portable_ramp: tuple[float, float] = (800.0, 1700.0)
    reduce: float = 0.82
    gather: float = 0.8
    exchange: float = 0.71
    maker: str = "NVIDIA"
    sixteen: str = "bf16"
    source: str = field(default="", compare=False)

    def kernel(self, portable: bool) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return FLOP/s of an attention kernel's forward and backward, and its ramps."""
        if not portable:
            return self.attention, self.ramp
        forward, backward = self.attention
        return (forward * self.portable, backward * self.portable), self.portable_ramp

    def peak(self, precision: str) -> float:
        """Return dense peak in FLOP/s of matrix products whose inputs have a precision."""
        if precision == "fp4" and self.fp4:
            return self.fp4
        return self.fp8 if precision in ("fp8", "fp4") and self.fp8 else self.bf16


def _gpu(
    name: str, bf16: float, fp8: float, memory: float, bandwidth: float, sms: int, link: float,
    nic: float, host: float, **more: float | int | str | tuple[float, float],
) -> Gpu:  # fmt: skip
    """Return a GPU from the units that tables print: TFLOP/s, GB, TB/s and GB/s."""
    fp4, peer = float(more.pop("fp4", 0.0)), float(more.pop("peer", 0.0))  # type: ignore[arg-type]
    return Gpu(
        name, bf16 * TERA, fp8 * TERA, memory * GIGA, bandwidth * TERA, sms, link * GIGA,
        nic * GIGA, host * GIGA, fp4=fp4 * TERA, peer=peer * GIGA, **more,  # type: ignore[arg-type]
    )  # fmt: skip


_A100 = _gpu(
    "a100-80gb", 312, 0, 79.15 * GIB / GIGA, 2.0, 108, 300, 25, 31, gemm=0.87,
    attention=(195 * TERA, 170 * TERA), ramp=(550.0, 1100.0), portable_ramp=(550.0, 1100.0),
    reduce=0.77, gather=0.77, exchange=0.7,
)  # fmt: skip
_H100 = _gpu(
    "h100", 989, 1979, 79.15 * GIB / GIGA, 3.35, 132, 450, 50, 63, reduce=1.06, portable=0.59
)
_B200 = _gpu(
    "b200", 2250, 4500, 178.35 * GIB / GIGA, 8.0, 148, 900, 50, 63, fp4=9000, gemm=0.78, gemm8=0.76,
    reduce=0.85, gather=0.76, attention=(1500 * TERA, 1390 * TERA),
)  # fmt: skip
_GB200 = replace(
    _B200, name="gb200", bf16=2500 * TERA, fp8=5000 * TERA, fp4=10000 * TERA, memory=184.31 * GIB,
    host=450 * GIGA, node=72, gemm=0.73, gemm8=0.72,
)  # fmt: skip
_MI300X = _gpu(
    "mi300x", 1300, 2610, 192, 5.3, 304, 448, 50, 63, peer=64, gemm=0.51, gemm8=0.45, maker="AMD",
    attention=(454 * TERA, 359 * TERA), source="fp8 product and attention rates are assumed",
)  # fmt: skip

_MI355X = replace(
    _MI300X, name="mi355x", bf16=2500 * TERA, fp8=5000 * TERA, memory=288 * GIGA,
    bandwidth=8.0 * TERA, multiprocessors=256, link=535 * GIGA, peer=76.5 * GIGA, gemm=0.63,
    gemm8=0.55, attention=(1020 * TERA, 832 * TERA),
)  # fmt: skip

GPUS = {
    gpu.name: gpu
    for gpu in (
        replace(_A100, name="a100-40gb", memory=39.39 * GIB, bandwidth=1.555 * TERA),
        _A100,
        replace(_A100, name="a800", link=200 * GIGA, source="A100 with 8 of its 12 NVLinks"),
        _gpu(
            "v100", 125, 0, 31.73 * GIB / GIGA, 0.9, 80, 150, 12.5, 16, peer=50, gemm=0.7,
            sixteen="fp16", attention=(57 * TERA, 45 * TERA), source="SXM2 with 32 GB; the best"
            " product is 89 of a V100S' 130 TFLOP/s, attention rates are assumed",
        ),
        _H100,
        replace(
            _H100, name="h100-96gb-hbm2e", memory=96 * GIGA, bandwidth=2.4 * TERA, gemm=0.65,
            gemm8=0.58, source="500 W part of torchtitan's benchmarks; products scaled by power",
        ),
        replace(_H100, name="h200", memory=139.8 * GIB, bandwidth=4.8 * TERA, gemm8=0.735),
        replace(
            _H100, name="h800", link=200 * GIGA, reduce=0.82,
            source="DeepSeek-V3, arXiv 2412.19437: 160 of 200 GB/s are reached",
        ),
        replace(
            _H100, name="h20", bf16=148 * TERA, fp8=296 * TERA, memory=95.1 * GIB,
            bandwidth=4.0 * TERA, multiprocessors=78, attention=(94 * TERA, 82 * TERA),
            source="product and attention rates are H100's shares of the peak",
        ),
        _B200,
        replace(_B200, name="b300", memory=288 * GIGA, nic=100 * GIGA, fp4=14000 * TERA),
        _GB200,
        replace(_GB200, name="gb300", memory=276.5 * GIB, nic=100 * GIGA, fp4=15000 * TERA),
        _gpu(
            "rtx-pro-6000", 500, 1000, 94.97 * GIB / GIGA, 1.597, 188, 50, 50, 63, fp4=2000,
            attention=(227 * TERA, 192 * TERA), source="Server Edition, on PCIe 5 without NVLink;"
            " best product and attention rates are assumed",
        ),
        _gpu(
            "l40s", 362, 733, 44.4 * GIB / GIGA, 0.864, 142, 25, 25, 31, gemm=0.7,
            attention=(181 * TERA, 154 * TERA), source="on PCIe 4 without NVLink; best product and"
            " attention rates are assumed",
        ),
        _gpu(
            "mi250x", 191.5, 0, 64, 1.64, 110, 200, 12.5, 31, peer=50, gemm=0.7, maker="AMD",
            attention=(68 * TERA, 64 * TERA), source="one of its two dies, which processes see as"
            " a GPU; best product and attention rates are assumed",
        ),
        _MI300X,
        replace(_MI300X, name="mi325x", memory=256 * GIGA, bandwidth=6.0 * TERA),
        replace(_MI355X, name="mi350x", bf16=2300 * TERA, fp8=4600 * TERA),
        _MI355X,
    )
}  # fmt: skip
"""Every GPU by its short name."""
