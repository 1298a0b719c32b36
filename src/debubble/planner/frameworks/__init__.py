"""Frameworks that run plans: their refusals, and the flags with which they run a plan."""
