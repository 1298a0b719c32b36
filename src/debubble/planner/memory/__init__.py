"""Bytes on every GPU: weights, optimizer states, activations and buffers over a step."""
