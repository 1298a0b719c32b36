"""The engine that leaves the work to PyTorch's pipeline runtime, with our schedules."""
