"""From a model and a cluster to a plan: degrees, schedule, layer split, step time, memory, flags.

The data's way: a :class:`~debubble.planner.model.transformer.Model` and a
:class:`~debubble.planner.hardware.cluster.Cluster` give times and bytes of every layer under a
:class:`~debubble.planner.candidate.Candidate`; a split sums them to one :class:`debubble.Costs` per
stage, in seconds and bytes; the engine simulates the schedule with them; and the search keeps the
best. Units are seconds, bytes, FLOPs and tokens everywhere.
"""
