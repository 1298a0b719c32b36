"""Measured costs of stages, and faster schedules from them."""
