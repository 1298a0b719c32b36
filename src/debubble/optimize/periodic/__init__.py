"""Schedules that repeat: cycles, and how they become schedules of all microbatches."""
