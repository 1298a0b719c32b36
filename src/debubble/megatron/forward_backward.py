"""Megatron's function of forwards and backwards, for any schedule on our engine."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from debubble.core.actions import among, kinds_of, stages_of
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.kinds import Kind
from debubble.core.schedule import Schedule
from debubble.megatron.internals import Megatron, MegatronCall
from debubble.megatron.named_steps import ranges_of
from debubble.megatron.placement import check_chunks, refresh, reported
from debubble.megatron.refused import refuse
from debubble.megatron.source import ScheduleSource, forwards
from debubble.megatron.split import SPLITS, Split, choose_split
from debubble.megatron.stage import ByMicrobatch, MegatronStage, MegatronStep
from debubble.megatron.synchronization import GradientSync, ParameterSync
from debubble.torch.autograd.gradients import Gradients, TiedWeights
from debubble.torch.data.batch import StepData
from debubble.torch.engine.engine_setup import EngineSetup
from debubble.torch.engine.own_engine import OwnEngine
from debubble.torch.engine.wire import Wire
from debubble.torch.ranks.message_log import HangDumps
from debubble.torch.ranks.process_group import Ranks
from debubble.torch.ranks.watch import StoreWatch, on_all_ranks, rendezvous
from debubble.torch.setup import compare_schedules

log = logging.getLogger(__name__)

LAYERS = "Transformer Engine's layers with delay_wgrad_compute leave weight gradients to W"
"""Advice where backwards are not split."""

KEPT = 16
"""Most engines that are kept for a model."""


class PipelineLink:
    """The ranks of one pipeline group, and the watch over them."""

    def __init__(self, groups: Any, timeout: float) -> None:
        with rendezvous(timeout):
            self.ranks = Ranks.of(groups.pp, None, timeout, place_in(groups))
        self.watch = StoreWatch.of(
            self.ranks, lambda *_: "the start of the step",
            lambda group: self.ranks.abort(group=group),
        )  # fmt: skip
        weakref.finalize(self, self.watch.stop)


class ForwardBackward:
    """Callable with the keywords of Megatron's forward-backward functions.

    It keeps engines for later calls, by model, number of microbatches and direction.
    """

    def __init__(self, schedule: Any, split: str = "auto", timeout: float = 600) -> None:
        if split not in SPLITS:
            raise ParameterError(f"split is {split!r}; {did_you_mean(str(split), SPLITS)}")
        self.megatron = Megatron()
        self.__signature__ = self.megatron.signature
        self.source, self._split, self._timeout = ScheduleSource(schedule), split, timeout
        self._links: dict[tuple[int, ...], PipelineLink] = {}
        self._models: dict[tuple[int, ...], ModelChunks] = {}

    def __call__(self, **given: Any) -> list[Any]:
        """Run a step; return what Megatron stores of every loss, on the ranks that report it."""
        call = self.megatron.call(given)
        groups = self.megatron.groups_of(call)
        link = self._link(groups)
        chunks = call.chunks
        key = (id(link), *map(id, chunks))
        if key not in self._models:
            refresh()
            self._models[key] = ModelChunks(
                self.megatron, link, self.source, self._split, list(map(weakref.proxy, chunks))
            )
            weakref.finalize(chunks[0], self._models.pop, key, None)
        return self._models[key].run(call, groups)

    def _link(self, groups: Any) -> PipelineLink:
        key = tuple(dist.get_process_group_ranks(groups.pp))
        if key not in self._links:
            self._links[key] = PipelineLink(groups, self._timeout)
        return self._links[key]


class ModelChunks:
    """One rank's chunks of a model, with engines that run them."""

    def __init__(
        self,
        megatron: Megatron,
        link: PipelineLink,
        source: ScheduleSource,
        split: str,
        chunks: list[Any],
    ) -> None:
        self._megatron, self._link, self._source = megatron, link, source
        self._split, self._chunks = split, chunks
        self._wire = Wire(link.ranks)
        self._engines: dict[tuple[int, bool], OwnEngine] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        """Numbers of the sizes of a batch; outputs of stages have one form for each."""
        self._said: set[str] = set()
        """Reasons why backwards are not split that were logged."""
        self._step: MegatronStep | None = None

    def _warn(self, _: int, why: str) -> None:
        """Say once for all stages of this rank why their backwards are not split."""
        if why not in self._said:
            self._said.add(why)
            log.warning("I does whole backwards on this rank, and W nothing: %s; %s", why, LAYERS)

    def run(self, call: MegatronCall, groups: Any) -> list[Any]:
        """Run a step as Megatron's own functions do."""
        megatron, link = self._megatron, self._link
        config = megatron.config_of(call.chunks[0])
        engine = self._engine(call, config)
        trains = not call.forward_only
        finalizes = trains and config.finalize_model_grads_func is not None
        last = engine.schedule.stages - 1 in engine.stages
        link.watch.text = engine.plan.text
        link.watch.keep_messages(HangDumps.of(link.ranks, self._wire.log, engine.setup.schedule))
        ours = engine.plan.lowered is not engine.plan.schedule
        self._wire.announces = config.variable_seq_lengths and link.ranks.batched and ours
        with link.watch.step():
            link.watch.enter(link.ranks.channel, "train" if trains else "evaluate")
            if finalizes:
                embedding = megatron.schedules.clear_embedding_activation_buffer(
                    config, call.chunks, last
                )
            if config.timers is not None:
                timer = config.timers("forward-backward", log_level=1)
                timer.start(barrier=config.barrier_with_L1_time)
            self._step = step = self._new_step(call, config, groups, engine)
            try:
                if trains:
                    step.parameters = ParameterSync(config, call.chunks, _by_start(engine))
                    with GradientSync(config, call.chunks) as step.sync:
                        engine.step(self._data(call, config))
                else:
                    engine.forward(self._data(call, config), outputs=False)
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
        return reported(step.store, engine.schedule.placement, link.ranks)

    def _new_step(
        self, call: MegatronCall, config: Any, groups: Any, engine: OwnEngine
    ) -> MegatronStep:
        data = call.iterators
        for chunk, order in enumerate(_forwards_of(engine)):
            if data[chunk] is not None and order != sorted(order):
                data[chunk] = ByMicrobatch(data[chunk])
        return MegatronStep(
            call, config, self._megatron.schedules.forward_step, data, groups.cp.size(),
            torch.zeros([], dtype=torch.int, device=self._link.ranks.device),
            ranges_of(self._megatron.schedules),
        )  # fmt: skip

    def _current(self) -> MegatronStep:
        assert self._step is not None, "stages run in steps"
        return self._step

    def _data(self, call: MegatronCall, config: Any) -> StepData:
        units = range(call.num_microbatches)
        if config.variable_seq_lengths:
            signatures = list(units)
        else:
            sizes = (call.seq_length, call.micro_batch_size, call.decoder_seq_length)
            signatures = [self._shapes.setdefault(sizes, len(self._shapes))] * len(units)
        return StepData(
            args=dict.fromkeys(units, ()),
            kwargs={unit: {"microbatch": unit} for unit in units},
            targets={} if call.forward_only else dict.fromkeys(units, True),
            weights=[1.0] * len(units), signatures=signatures, anew=config.variable_seq_lengths,
        )  # fmt: skip

    def _engine(self, call: MegatronCall, config: Any) -> OwnEngine:
        key = (call.num_microbatches, call.forward_only)
        if key not in self._engines:
            ranks = self._link.ranks
            schedule, splits = on_all_ranks(ranks, lambda: self._prepare(call, config))
            compare_schedules(schedule, ranks)
            mine = schedule.placement.stages_on(ranks.rank)
            setup = EngineSetup(
                ranks, schedule, dict(zip(mine, self._chunks, strict=True)), _loss_of,
                {stage: split.fuses for stage, split in zip(mine, splits, strict=True)},
                self._warn, partial(self._stage, schedule, splits),
            )  # fmt: skip
            gradients = Gradients({}, TiedWeights([], ranks))
            if len(self._engines) == KEPT:
                del self._engines[next(iter(self._engines))]
            self._engines[key] = OwnEngine(setup, gradients, self._link.watch, self._wire)
        return self._engines[key]

    def _prepare(self, call: MegatronCall, config: Any) -> tuple[Schedule, list[Split]]:
        """Return the schedule of a call, and how the backward of each chunk is split."""
        ranks, chunks = self._link.ranks, call.chunks
        if len(call.iterators) != len(chunks):
            raise ParameterError(
                f"data_iterator has {len(call.iterators)} iterators and model {len(chunks)} "
                "chunks; give a list with one iterator for each chunk"
            )
        if call.forward_only:
            made = forwards(
                self._source.schedule(ranks.size, len(chunks)).placement, call.num_microbatches
            )
            refuse(config, made)
            check_chunks(made, chunks)
            return made, [Split(True, False)] * len(chunks)
        made = self._source.schedule(ranks.size, len(chunks), call.num_microbatches)
        check_chunks(made, chunks)
        mine = made.placement.stages_on(ranks.rank)
        halves = among(kinds_of(made.actions), SPLIT_KINDS)
        split = set(stages_of(made.actions[halves]).tolist())
        splits = [
            choose_split(chunk, config, self._split if stage in split else "fuse")
            for stage, chunk in zip(mine, chunks, strict=True)
        ]
        refuse(config, made, delays=any(s.delays and not s.fuses for s in splits))
        for stage, one in zip(mine, splits, strict=True):
            if one.why:
                self._warn(stage, one.why)
        return made, splits

    def _stage(
        self, schedule: Schedule, ways: list[Split], number: int, *given: Any, **options: Any
    ) -> MegatronStage:
        chunk = schedule.placement.stages_on(self._link.ranks.rank).index(number)
        kinds = kinds_of(schedule.actions)[stages_of(schedule.actions) == number].tolist()
        actions = {kind: kinds.count(kind) for kind in (Kind.B, *SPLIT_KINDS)}
        make: Callable[..., MegatronStage] = MegatronStage
        return make(
            number, *given, **options, chunk=chunk, current=self._current, actions=actions,
            delays=ways[chunk].delays,
        )  # fmt: skip


def place_in(groups: Any) -> str:
    """Return this process's ranks in Megatron's other groups, for messages: ``tp 1, cp 0``."""
    others = {name: getattr(groups, name, None) for name in ("tp", "cp", "dp")}
    found = {name: group for name, group in others.items() if group is not None}
    return ", ".join(f"{name} {group.rank()}" for name, group in found.items() if group.size() > 1)


def _forwards_of(engine: OwnEngine) -> list[list[int]]:
    """Return the microbatches of each chunk in the sequence of its forwards."""
    program = [step for step in engine.program if step.kind == Kind.F]
    return [[step.unit for step in program if step.stage == stage] for stage in engine.stages]


def _by_start(engine: OwnEngine) -> list[int]:
    """Return the chunks in the sequence of their first forwards."""
    stages = list(dict.fromkeys(step.stage for step in engine.program if step.kind == Kind.F))
    return [list(engine.stages).index(stage) for stage in stages]


def _loss_of(output: Any, _: Any) -> Any:
    """Return the output of the last stage: Megatron's step of a forward makes it the loss."""
    return output
