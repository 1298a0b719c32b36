"""Checks, measures, comparisons and the reports of simulations with closed forms."""
