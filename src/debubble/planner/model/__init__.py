"""Models: their layers and shapes, and the files that describe them."""
