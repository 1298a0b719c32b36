"""PyTorch's pipelines on FSDP2, which torchtitan and NeMo Automodel share."""
