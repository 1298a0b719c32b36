"""Files in and out: schedules, costs, traces."""
