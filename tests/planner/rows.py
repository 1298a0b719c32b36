"""A published step in the columns of a table of them."""

ROW = {
    "source": "dgxc v25", "model": "LLAMA3_70B", "layers": "80", "hidden": "8192", "heads": "64",
    "kv_heads": "8", "ffn": "28672", "vocab": "128256", "seq": "8192", "experts": "", "topk": "",
    "gpu": "H100-80GB-SXM", "gpus": "64", "tp": "4", "pp": "4", "vp": "5", "cp": "2", "ep": "1",
    "dp": "2", "micro_batch": "1", "global_batch": "128", "recompute": "none",
    "zero": "1 (dist-opt)", "schedule": "interleaved-1F1B", "precision": "bf16",
    "step_s": "14.66", "mem_gb": "", "notes": "", "framework": "nemo", "year": "2025",
    "gated": "yes", "norm": "rms", "tied": "no", "dropout": "no", "head_dim": "",
    "attention": "flash", "sequence_parallel": "yes", "gradient_bytes": "4",
    "overlap": "tp+dp+p2p", "fused_kernels": "yes", "fused_norms": "yes", "fused_loss": "no",
    "nic_gb_s": "",
}  # fmt: skip
