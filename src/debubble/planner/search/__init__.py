"""The search for the best plans: candidates, bounds, layer splits and their evaluation."""
