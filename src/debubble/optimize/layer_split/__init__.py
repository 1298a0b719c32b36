"""Layers of a model cut into stages: which cuts fit, which is fastest, and a bound for all."""
