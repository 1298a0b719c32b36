"""Pipelines in a training loop on PyTorch."""
