"""Choices of every stage: keep activations, recompute them, or copy them to the host."""
