"""Exchange of gradients and weights among replicas, as a job's configuration asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from debubble.megatron.internals import overlaps_reduction, start_grad_sync


class GradientSync:
    """The ``no_sync_func`` and ``grad_sync_func`` of a job in one step.

    No gradient is exchanged before the last one of its chunk is there. Where the last action of a
    chunk gives all weights their gradients, it runs outside of ``no_sync``, so that a wrapper
    exchanges them bucket by bucket, as in Megatron's own schedules. Where it does not, as W, all
    buckets of the chunk follow it.
    """

    def __init__(self, config: Any, chunks: Sequence[Any]) -> None:
        self._chunks = chunks
        self._no_sync = _listed(config.no_sync_func, 1)
        self._starts = _listed(config.grad_sync_func, len(chunks))
        self._held = ExitStack()

    def __enter__(self) -> GradientSync:
        self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @contextmanager
    def last(self, chunk: int, whole: bool) -> Iterator[None]:
        """Run the last action of a chunk that adds gradients."""
        if whole and not self._starts:
            self._held.close()
            yield
            self._hold()
            return
        yield
        self._held.close()
        part = self._chunks[chunk]
        if self._starts:
            self._starts[chunk](part.parameters())
        elif overlaps_reduction(part):
            start_grad_sync(part)
        self._hold()

    def _hold(self) -> None:
        for no_sync in self._no_sync:
            self._held.enter_context(no_sync())


class ParameterSync:
    """The ``param_sync_func`` of a job with several chunks in one step: weights come in time.

    Those of the next chunk are asked for when a chunk begins.
    """

    def __init__(self, config: Any, chunks: Sequence[Any], first_forwards: Sequence[int]) -> None:
        # Without other chunks, Megatron leaves it to the hooks of the modules.
        self._starts = _listed(config.param_sync_func, len(chunks)) if len(chunks) > 1 else []
        self._chunks, self._coming = chunks, list(first_forwards)
        self.begin()

    def begin(self) -> None:
        """Ask for the weights of the next chunk."""
        if self._starts and self._coming:
            chunk = self._coming.pop(0)
            self._starts[chunk](self._chunks[chunk].parameters())


def _listed(functions: Any, count: int) -> list[Callable[..., Any]]:
    """Return functions that a job gives, or `count` times the one that it gives."""
    if functions is None:
        return []
    return list(functions) if isinstance(functions, list) else [functions] * count
