"""Schedules that repeat: patterns, cycles, and how they become schedules of all microbatches."""
