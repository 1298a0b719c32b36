"""Lower bounds on the makespan, without a solver or with ranks that are modeled exactly."""
