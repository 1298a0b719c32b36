"""Simulated annealing of whole schedules, and moves that the engine simulates."""
