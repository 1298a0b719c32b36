"""Machines of a run: global ranks, hosts and files of the ranks that a finding is about."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from debubble.diagnosis.candidates import Where
from debubble.diagnosis.observed import Location
from debubble.diagnosis.run import Run
from debubble.interchange.text import plain

Worker = tuple[int, int]
"""Copy and rank."""

FACTS = ("global_rank", "host", "file")
"""Fields of a location."""


@dataclass(frozen=True)
class Machines:
    """Locations of the workers of a run, and the facts by which they differ.

    Parameters
    ----------
    locations
        Location of every worker, by copy and rank.
    numbered
        True if any global rank is not that of the pipeline.
    hosts, files
        True if there are several.
    """

    locations: dict[Worker, Location]
    numbered: bool
    hosts: bool
    files: bool

    @classmethod
    def of(cls, run: Run) -> Machines:
        """Return the machines of a run."""
        workers = product(range(run.copies), range(run.schedule.ranks))
        found = {worker: run.location(*worker) for worker in workers}
        return cls(
            found,
            any(one.global_rank not in (None, rank) for (_, rank), one in found.items()),
            len({one.host for one in found.values()} - {None}) > 1,
            len({one.file for one in found.values()} - {None}) > 1,
        )

    def places(self, where: Where) -> list[Location]:
        """Return the locations of a place in the pipeline: of all copies if it is not in one."""
        copy, rank, link = (where.get(key) for key in ("copy", "rank", "link"))
        if rank is None and link is None and copy is None:
            return []
        ranks = link if isinstance(link, list) else sorted({r for _, r in self.locations})
        ranks = [rank] if isinstance(rank, int) else ranks
        copies = [copy] if isinstance(copy, int) else sorted({c for c, _ in self.locations})
        return [self.locations[worker] for worker in product(copies, ranks)]

    def facts(self, where: Where) -> dict[str, Any]:
        """Return global rank, host and file of a place if known, as one value or a list.

        Lists have the workers by copy and rank.
        """
        places = self.places(where)
        columns = {fact: [getattr(place, fact) for place in places] for fact in FACTS}
        return {
            fact: values[0] if len(values) == 1 else values
            for fact, values in columns.items() if any(value is not None for value in values)
        }  # fmt: skip

    def columns(self, most: int) -> dict[str, list[str]]:
        """Return at most `most` workers and the facts that differ, by title; empty without any."""
        places = list(self.locations.items())[:most]
        facts = {
            fact.replace("_", " "): [getattr(place, fact) for _, place in places] for fact in FACTS
        }
        known = {title: values for title, values in facts.items() if len({*values}) > 1}
        workers = {
            "copy": [copy for (copy, _), _ in places], "rank": [rank for (_, rank), _ in places],
        }  # fmt: skip
        if not any(workers["copy"]):
            del workers["copy"]
        return {
            title: ["–" if value is None else plain(str(value)) for value in values]
            for title, values in (workers | known if known else {}).items()
        }

    def named(self, where: Where, short: bool = False) -> str:
        """Return the location of a worker in words, without facts that all workers share.

        The text is ``" (global rank 3, host node7, file rank3.json)"``, or empty. A short one has
        a file only if it would be empty without.
        """
        places = self.places(where)
        if len(places) != 1:
            return ""
        (place,), parts = places, []
        if self.numbered and place.global_rank is not None:
            parts.append(f"global rank {place.global_rank}")
        if self.hosts and place.host:
            parts.append(f"host {plain(place.host)}")
        if self.files and place.file and not (short and parts):
            parts.append(f"file {plain(place.file)}")
        return f" ({', '.join(parts)})" if parts else ""

    def ends(self, where: Where) -> str:
        """Return the locations of both ends of a link in words, like :meth:`named`."""
        places = self.places(where)
        if len(places) != 2:
            return ""
        one, other = places
        parts = []
        if self.numbered and None not in (one.global_rank, other.global_rank):
            parts.append(f"global ranks {one.global_rank} and {other.global_rank}")
        if self.hosts and one.host and other.host:
            same = one.host == other.host
            names = plain(one.host), plain(other.host)
            parts.append(f"both on {names[0]}" if same else f"hosts {names[0]} and {names[1]}")
        return f" ({', '.join(parts)})" if parts else ""

    def apart(self, where: Where) -> bool:
        """Return False if both ends of a link are known to be on one host."""
        hosts = {place.host for place in self.places(where)}
        return len(hosts) != 1 or None in hosts
