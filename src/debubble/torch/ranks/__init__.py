"""The ranks of a pipeline: process groups, progress, hangs, and starting them."""
