"""The catalogue: one module per family, found by being here."""
