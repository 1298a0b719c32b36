"""Megatron's function of forwards and backwards, for any schedule on our engine."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from debubble.core.actions import kinds_of, microbatches_of, stages_of
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.kinds import Kind
from debubble.core.schedule import Schedule
from debubble.megatron.check import refuse
from debubble.megatron.internals import Call, Megatron
from debubble.megatron.named_steps import ranges_of
from debubble.megatron.source import ScheduleSource, forwards
from debubble.megatron.split import SPLITS, Split, choose_split
from debubble.megatron.stage import ByMicrobatch, MegatronStage, Step
from debubble.megatron.synchronization import GradientSync, ParameterSync
from debubble.torch.autograd.gradients import Gradients, TiedWeights
from debubble.torch.data.batch import StepData
from debubble.torch.engine.own_engine import OwnEngine
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.stage import EngineSetup
from debubble.torch.engine.wire import Wire
from debubble.torch.models.find_stages import split_warner
from debubble.torch.ranks.message_log import HangDumps
from debubble.torch.ranks.process_group import Ranks
from debubble.torch.ranks.watch import StoreWatch, on_all_ranks, rendezvous
from debubble.torch.setup import compare_schedules


class Link:
    """The ranks of one pipeline group, and the watch over them."""

    def __init__(self, group: Any, timeout: float) -> None:
        with rendezvous(timeout):
            self.ranks = Ranks.of(group, None, timeout)
        self.watch = StoreWatch.of(self.ranks, lambda *_: "the start of the step")
        weakref.finalize(self, self.watch.stop)


class ForwardBackward:
    """Callable with the keywords of Megatron's forward-backward functions.

    It keeps engines for later calls, by model, number of microbatches and direction.
    """

    def __init__(self, schedule: Any, split: str, timeout: float) -> None:
        if split not in SPLITS:
            raise ParameterError(f"split is {split!r}; {did_you_mean(str(split), SPLITS)}")
        self.megatron = Megatron()
        self.__signature__ = self.megatron.signature
        self._source, self._split, self._timeout = ScheduleSource(schedule), split, timeout
        self._links: dict[tuple[int, ...], Link] = {}
        self._models: dict[tuple[int, ...], ModelChunks] = {}

    def __call__(self, **given: Any) -> list[Any]:
        """Run a step; return what Megatron stores of every loss, on the rank of the last stage."""
        call = self.megatron.call(given)
        groups = self.megatron.groups_of(call)
        link = self._link(groups.pp)
        chunks = call.chunks
        key = (id(link), *map(id, chunks))
        if key not in self._models:
            self._models[key] = ModelChunks(
                self.megatron, link, self._source, self._split, list(map(weakref.proxy, chunks))
            )
            weakref.finalize(chunks[0], self._models.pop, key, None)
        return self._models[key].run(call, groups)

    def _link(self, group: Any) -> Link:
        key = tuple(dist.get_process_group_ranks(group))
        if key not in self._links:
            self._links[key] = Link(group, self._timeout)
        return self._links[key]


class ModelChunks:
    """One rank's chunks of a model, with engines that run them."""

    def __init__(
        self, megatron: Megatron, link: Link, source: ScheduleSource, split: str, chunks: list[Any]
    ) -> None:
        self._megatron, self._link, self._source = megatron, link, source
        self._split, self._chunks = split, chunks
        self._wire = Wire(link.ranks)
        self._engines: dict[tuple[int, bool], OwnEngine] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        """Numbers of the sizes of a batch, each of which has outputs of one form."""
        self._warn = split_warner("auto")
        self._step: Step | None = None

    def run(self, call: Call, groups: Any) -> list[Any]:
        """Run a step as Megatron's own functions do."""
        megatron, link = self._megatron, self._link
        config = megatron.config_of(call.chunks[0])
        trains = not call.forward_only
        with link.watch.step():
            link.watch.enter(link.ranks.channel, f"{'train' if trains else 'evaluate'}")
            engine = self._engine(call, config)
            self._link.watch.text = engine.plan.text
            self._link.watch.keep_messages(
                HangDumps.of(link.ranks, self._wire.log, engine.setup.schedule)
            )
            last = engine.schedule.stages - 1 in engine.stages
            finalizes = trains and config.finalize_model_grads_func is not None
            if finalizes:
                embedding = megatron.schedules.clear_embedding_activation_buffer(
                    config, call.chunks, last
                )
            if config.timers is not None:
                timer = config.timers("forward-backward", log_level=1)
                timer.start(barrier=config.barrier_with_L1_time)
            self._step = step = self._new_step(call, config, groups, engine)
            data = self._data(call, config)
            try:
                if trains:
                    step.parameters = ParameterSync(config, call.chunks, step.chunks_by_start)
                    with GradientSync(config, call.chunks) as step.sync:
                        engine.step(data)
                else:
                    engine.forward(data, outputs=False)
            finally:
                self._step = None
            link.watch.set_waiting()
            if finalizes:
                megatron.schedules.finish_embedding_wgrad_compute(
                    config, embedding, last, groups.tp
                )
                megatron.finalize(config, call.chunks, step.tokens, groups, call)
            if config.timers is not None:
                config.timers("forward-backward").stop()
        return step.store

    def _new_step(self, call: Call, config: Any, groups: Any, engine: OwnEngine) -> Step:
        ...
