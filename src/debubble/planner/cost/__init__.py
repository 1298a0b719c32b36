"""Seconds of layers, stages and steps, and the measured efficiencies that scale them."""
