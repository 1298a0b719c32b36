"""``debubble run``: a schedule verified, measured and compared with its prediction."""
