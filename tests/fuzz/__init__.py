"""Random inputs against independent judges: ``python -m tests.fuzz --minutes 10``."""
