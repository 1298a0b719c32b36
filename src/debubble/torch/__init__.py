"""Pipelines in a training loop of one's own, and what their stages cost."""
