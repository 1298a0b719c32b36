"""Connections with a deadline: the head of a request has to arrive within some seconds."""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle

from uvicorn.protocols.http.h11_impl import H11Protocol

from debubble.playground.limits import READING


class PromptProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose next request's head is late.

    Uvicorn itself only ends connections that are idle after an answer; one that sends nothing, or
    a byte now and then, would keep its place among those that are served.
    """

    alarm: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a request is there, start it when a part of one is."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self.alarm is None:
            self.alarm = self.loop.call_later(READING, self.transport.close)

    def _stop(self) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
