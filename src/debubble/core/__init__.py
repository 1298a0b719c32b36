"""Data types: actions, placement, schedule, costs and errors; no algorithms."""
