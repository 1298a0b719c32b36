"""Hangs: dumps of what every rank sent and received, and the schedule's action that never came."""
