"""NeMo Automodel."""
