"""Rules and flags of torchtitan."""
