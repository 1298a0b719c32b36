"""List scheduling: orders of work for given costs and memory limits, see :mod:`.scheduler`."""

from debubble.listing.scheduler import OBJECTIVES, schedule
from debubble.listing.workload import TOLERANCE, Workload

__all__ = ["OBJECTIVES", "TOLERANCE", "Workload", "schedule"]
