"""Schedule to schedule: explicit transfers and everything else that is not compute."""
