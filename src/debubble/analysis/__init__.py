"""Checks, closed forms beside simulations, and comparisons."""
