"""Execute schedules for real on ``torch.distributed``: verify gradients, measure, compare."""
