"""What a schedule is: actions, placement, schedule, costs and errors; no algorithms."""
