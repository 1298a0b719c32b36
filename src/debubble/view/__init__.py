"""Timelines in the terminal, as figures and as pages."""
