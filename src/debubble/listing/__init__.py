"""List scheduling: orders of work for given costs and memory limits, see :mod:`.scheduler`."""

from debubble.listing.scheduler import OBJECTIVES, check_memory, schedule, smallest_memory

__all__ = ["OBJECTIVES", "check_memory", "schedule", "smallest_memory"]
