"""Backwards split into I and W, versions of weights, and the gradients of a step."""
