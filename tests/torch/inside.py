"""The private state of pipelines that tests look at or hook into, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

import debubble.torch as dt
from debubble.torch.engine.tasks import Task


def messages(pipe: dt.Pipeline) -> list[Tensor]:
    """What is between two stages: to be sent, on its way, with a buffer for it, or not used yet.

    On the first stage a gradient waits from I, which has nothing to do there, to W.
    """
    engine, wire = pipe._engine, pipe._wire
    found = [part for queue in wire._sending.values() for _, parts, _ in queue for part in parts]
    for ready in engine._ready.values():
        found += ready if isinstance(ready, list) else ready.tensors
    for left in engine.stages[0]._left.values() if 0 in engine.stages else ():
        found += left[1]
    return found


def after_every_action(pipe: dt.Pipeline, call: Callable[[Sequence[Task]], None]) -> None:
    """Have a function called with the tasks of every action, or group, when it is over."""

    def after(compute: Callable[[Any], None], many: Callable[[Any], list[Task]]) -> Any:
        def computed(tasks: Any) -> None:
            compute(tasks)
            call(many(tasks))

        return computed

    engine = pipe._engine
    engine._compute = after(engine._compute, lambda task: [task])
    engine._compute_group = after(engine._compute_group, list)


def after_every_finish(pipe: dt.Pipeline, call: Callable[[], None]) -> None:
    """Have a function called whenever the end of an action is noted."""
    finish = pipe._engine.recorder.finish

    def finished(index: int) -> None:
        finish(index)
        call()

    pipe._engine.recorder.finish = finished


def trains(pipe: dt.Pipeline, stage: int) -> bool:
    """Whether the engine takes a stage for one that trains."""
    found: bool = pipe._engine.stages[stage].trains
    return found
