"""Rules and flags of NeMo Automodel."""
