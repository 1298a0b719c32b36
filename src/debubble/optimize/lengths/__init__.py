"""Microbatches of different lengths: which runs where, and searches with the times of each."""
