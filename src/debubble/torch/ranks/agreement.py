"""Steps that all ranks of a pipeline take together while it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from debubble.core.errors import DebubbleError, ParameterError
from debubble.torch.errors import RunError
from debubble.torch.ranks.process_group import Ranks
from debubble.torch.ranks.watch import describe_error, is_timeout

Outcome = TypeVar("Outcome")


def on_all_ranks(ranks: Ranks, work: Callable[[], Outcome]) -> Outcome:
    """Call `work` on all ranks, and return its result once it succeeded on all of them.

    Raises ParameterError with the message of another rank when it failed there, so that no rank
    waits for one that failed.
    """
    try:
        found = work()
    except Exception as error:
        ranks.channel.gather(describe_error(error))
        raise
    for rank, words in enumerate(ranks.channel.gather("")):
        if words:
            raise ParameterError(f"rank {rank} cannot begin: {words}")
    return found


@contextmanager
def rendezvous(timeout: float) -> Iterator[None]:
    """Turn errors of connections into a RunError about ranks that did not come."""
    try:
        yield
    except RuntimeError as error:
        late = is_timeout(str(error))
        if isinstance(error, DebubbleError) or not (late or "gloo" in str(error)):
            raise
        found = f"did not come within {timeout:g} s" if late else "failed, or ended"
        raise RunError(
            f"another rank {found} while this one made a Pipeline; its own output says why; all "
            "ranks of the group make it together, and timeout= waits longer"
        ) from None
