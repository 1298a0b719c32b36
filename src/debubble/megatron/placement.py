"""Placements other than Megatron's own: what it asks to build, run and save such a model.

Megatron places stage s as chunk ``s // ranks`` of rank ``s % ranks``. A V has other stages on a
rank, the last one with the first. Questions for layers of a chunk are put to Megatron as those of
the rank and chunk that hold the same stage in its own placement; so uneven layers, layouts and
MTP are as there, and checkpoints have the same names.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.megatron.internals import (
    BY_STAGE,
    EMBEDDINGS,
    KNOWN,
    Replacements,
    embedding_weight,
    gradient_of,
    layers_of,
    parallel_state,
    part_of_model,
)
from debubble.megatron.source import ScheduleSource
from debubble.torch.data.tree import mapped
from debubble.torch.ranks.process_group import Ranks, Tag


class PlacedModel:
    """The placement of a job's stages, once its sizes are known."""

    def __init__(self, source: ScheduleSource) -> None:
        self._source = source
        self._placements: dict[tuple[int, int], Placement] = {}
        self._asks_megatron = False
        self._embedding: Callable[[], Any] = lambda: None
        """Return the model chunk with the embedding, while it is there."""

    @property
    def placement(self) -> Placement:
        """The placement for the sizes of the job."""
        state = parallel_state()
        ranks = state.get_pipeline_model_parallel_world_size()
        chunks = state.get_virtual_pipeline_model_parallel_world_size() or 1
        if (ranks, chunks) not in self._placements:
            self._placements[ranks, chunks] = self._source.schedule(ranks, chunks).placement
        return self._placements[ranks, chunks]

    @property
    def differs(self) -> bool:
        """If the placement is not Megatron's own, which is asked no question just now."""
        state = parallel_state()
        if self._asks_megatron or not state.model_parallel_is_initialized():
            return False
        several = state.get_pipeline_model_parallel_world_size() > 1
        return several and not is_loop(self.placement)

    @property
    def has_differed(self) -> bool:
        """If Megatron was asked for a job whose placement is not its own."""
        return not all(map(is_loop, self._placements.values()))

    @property
    def ends(self) -> tuple[int, int]:
        """The ranks of the first and the last stage."""
        table = self.placement.table[0]
        return table[0], table[-1]

    def stage(self, chunk: int, rank: int | None = None) -> int:
        """Return the stage that a chunk of a rank holds, by default of this rank."""
        mine = parallel_state().get_pipeline_model_parallel_rank() if rank is None else rank
        return self.placement.stages_on(mine)[chunk]

    @contextmanager
    def ask_megatron(self, stage: int) -> Iterator[tuple[int, int]]:
        """Ask as the rank and chunk that hold a stage in Megatron's own placement."""
        state, ranks = parallel_state(), self.placement.ranks
        rank = state.get_pipeline_model_parallel_rank()
        self._asks_megatron = True
        state.set_pipeline_model_parallel_rank(stage % ranks)
        try:
            yield stage % ranks, stage // ranks
        finally:
            state.set_pipeline_model_parallel_rank(rank)
            self._asks_megatron = False

    def keep_embedding(self, model: Any) -> None:
        """Remember the model chunk with the embedding."""
        self._embedding = weakref.ref(model)

    def copy_embedding(self, model: Any) -> None:
        """Begin with the embedding's weights in a chunk that has a copy of them."""
        embedding = self._embedding()
        copy = model.shared_embedding_or_output_weight()
        if embedding is not None and copy is not None:
            copy.data.copy_(embedding.shared_embedding_or_output_weight().data)


_PLACED: list[PlacedModel] = []
"""The placement that Megatron is answered by; empty for its own."""

_REPLACED = Replacements()


def place(source: ScheduleSource) -> None:
    """Answer Megatron by the placement of a schedule."""
    _PLACED[:] = [PlacedModel(source)]
    replace_all()


def refresh() -> None:
    """Also answer modules that were imported since the model was built."""
    if _PLACED:
        replace_all()


def place_as_megatron() -> bool:
    """Give Megatron its own answers back; return if models may have been built by others."""
    differed = any(placed.has_differed for placed in _PLACED)
    _PLACED.clear()
    _REPLACED.undo()
    return differed


def placed_model() -> PlacedModel | None:
    """Return the placement that Megatron is answered by; None where it is its own."""
    return _PLACED[0] if _PLACED and _PLACED[0].differs else None


def check_chunks(schedule: Schedule, chunks: Sequence[Any]) -> None:
    """Refuse model chunks that were not built as the stages that a schedule has on this rank."""
    placement, placed = schedule.placement, placed_model()
    if placed is not None and _REPLACED.missing:
        raise DebubbleError(
            f"this megatron-core has no {min(_REPLACED.missing)}, which '{schedule.name}' needs "
            f"({placement.name}); debubble.megatron knows {KNOWN}: install one of these, or take "
            "a schedule such as 'interleaved-zb'"
        )
    rank = parallel_state().get_pipeline_model_parallel_rank()
    for chunk, (model, stage) in enumerate(zip(chunks, placement.stages_on(rank), strict=True)):
        fits = _has_ends(model, stage, placement)
        if placed is not None:
            fits &= _has_layers(model, chunk) and placed.placement.table == placement.table
        if not fits or (placed is None and not is_loop(placement)):
            raise ParameterError(
                f"chunk {chunk} of rank {rank} was not built as stage {stage}, which "
                f"'{schedule.name}' has there ({placement.name}); call dm.install or "
                "dm.place_model with this schedule before the model is built"
            )


def refuse_others(function: str, chunks: Sequence[Any]) -> None:
    """Refuse what Megatron's own function cannot run: chunks that it would not place so."""
    placed = placed_model()
    if placed is not None:
        raise ParameterError(
            f"Megatron's {function} does not run the placement of this model "
            f"({placed.placement.name}); call dm.install with the schedule, or what "
            "dm.forward_backward_func returns for it"
        )
    state = parallel_state()
    rank = state.get_pipeline_model_parallel_rank()
    own = Placement.loop(state.get_pipeline_model_parallel_world_size(), len(chunks))
    for chunk, (model, stage) in enumerate(zip(chunks, own.stages_on(rank), strict=True)):
        if not (_has_ends(model, stage, own) and _has_layers(model, chunk)):
            raise ParameterError(
                f"chunk {chunk} of rank {rank} was built for another placement than Megatron's, "
                f"and its {function} cannot run it; build the model anew, or call dm.install "
                "with the schedule that it was built for"
            )


def _has_ends(model: Any, stage: int, placement: Placement) -> bool:
    """Return if a chunk has the embedding and the output layer where a stage has them."""
    ends = [part_of_model(model, name) for name in ("pre_process", "post_process")]
    return ends in ([stage == 0, stage == placement.stages - 1], [None, None])


def _has_layers(model: Any, chunk: int) -> bool:
    """Return if a chunk begins with the layer that Megatron has there, as it is answered."""
    first, wanted = layers_of(model, chunk)
    return first == wanted


def reported(losses: list[Any], placement: Placement, ranks: Ranks) -> list[Any]:
    """Return losses on the rank of the last stage, and on the last rank, where loops log them."""
    source, reporter = placement.table[0][-1], ranks.size - 1
    if source == reporter or ranks.rank not in (source, reporter):
        return losses
    if ranks.rank == source:
        for work, _ in ranks.channel.send_object(
            mapped(losses, lambda tensor: tensor.cpu()), reporter, Tag.STEPS
        ):
            work.wait(ranks.channel.timeout)
        return losses
    found = ranks.channel.receive_object(source, Tag.STEPS)
    return list(mapped(found, lambda tensor: tensor.to(ranks.device)))


def is_loop(placement: Placement) -> bool:
    """Return if a placement is Megatron's own."""
    own = Placement.loop(placement.ranks, placement.chunks)
    return placement.copies > 1 or placement.table == own.table


def replace_all() -> None:
    """Replace what Megatron asks, also in modules that were imported since the last time."""
    for name, answer in (dict.fromkeys(BY_STAGE, _of_chunk) | OURS).items():
        _REPLACED.put(name, partial(_where_placed, answer))


def _where_placed(answer: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that answers by the placement of a job, where that is not Megatron's.

    The `answer` gets the placement, Megatron's own function, and the arguments of the call.
    """

    def ours(*args: Any, **kwargs: Any) -> Any:
        placed = placed_model()
        return own(*args, **kwargs) if placed is None else answer(placed, own, *args, **kwargs)

    return ours


_signature = cache(inspect.signature)


def _of_chunk(placed: PlacedModel, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Ask about a chunk as about the stage that it holds."""
    call = _signature(own).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    if given.get("ignore_virtual"):
        # Of the rank: what holds for one of its chunks. The last rank reports losses, too.
        given["ignore_virtual"] = False
        chunks = range(placed.placement.chunks)
        found = any(_of_chunk(placed, own, **(given | {"vp_stage": chunk})) for chunk in chunks)
        return found or (own.__name__ == REPORTS and own(*args, **kwargs))
    if given.get("vp_stage") is None:
        return own(*args, **kwargs)
    with placed.ask_megatron(placed.stage(given["vp_stage"], given.get("pp_rank"))) as place:
        rank, given["vp_stage"] = place
        if "pp_rank" in given:
            given["pp_rank"] = rank
        return own(*call.args, **call.kwargs)


REPORTS = "is_pipeline_last_stage"
"""Function that Megatron's training loop asks if it has losses to report."""


def _pp_first(placed: PlacedModel, _: Callable[..., bool], pp_group: Any) -> bool:
    return bool(pp_group.rank() == placed.ends[0])


def _pp_last(placed: PlacedModel, own: Callable[..., bool], pp_group: Any) -> bool:
    # With `is_vp_last_stage` it is the last stage; alone also the rank that reports losses.
    return own(pp_group) or bool(pp_group.rank() == placed.ends[1])


def _vp_last(
    placed: PlacedModel, own: Callable[..., bool], vp_stage: int, vp_size: int | None
) -> bool:
    if vp_stage is None or vp_size is None:
        return own(vp_stage, vp_size)
    return placed.stage(vp_stage) == placed.placement.stages - 1


def _last_rank(placed: PlacedModel, _: Callable[..., int], pp_group: Any) -> int:
    from torch import distributed as dist

    return dist.get_global_rank(pp_group, placed.ends[1])


def _set_up_embeddings(placed: PlacedModel, own: Callable[[Any], None], model: Any) -> None:
    first, last = placed.ends
    if first == last:
        # No other rank has a copy: Megatron has nothing to send.
        model.embd_group = None
    elif placed.ends != (0, placed.placement.ranks - 1) and embedding_weight(model) is not None:
        raise ParameterError(
            f"the first stage is on rank {first} and the last on rank {last}, and the "
            "embedding is in both; Megatron shares it among the first and the last rank: "
            "untie the weights, or use a V or a loop"
        )
    own(model)
    if first == last and embedding_weight(model) is not None:
        if model.pre_process:
            placed.keep_embedding(model)
        else:
            placed.copy_embedding(model)


def _reduce_embeddings(
    placed: PlacedModel, own: Callable[..., None], model: list[Any], config: Any, *groups: Any
) -> None:
    if placed.ends[0] != placed.ends[1]:
        own(model, config, *groups)
        return
    ends = [embedding_weight(model[at]) for at in (0, -1)]
    gradients = [gradient_of(weight) for weight in ends if weight is not None]
    if len(gradients) == 2 and None not in gradients:
        gradients[0].add_(gradients[1])
        gradients[1].copy_(gradients[0])


def _share_batch(placed: PlacedModel, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # Megatron shares all of a batch where MTP is, else what the rank's one end needs.
    rank = parallel_state().get_pipeline_model_parallel_rank()
    if placed.ends == (rank, rank):
        kwargs["mtp_on_this_rank"] = True
    return own(*args, **kwargs)


OURS: dict[str, Callable[..., Any]] = {
    "pipeline_parallel.utils.is_pp_first_stage": _pp_first,
    "pipeline_parallel.utils.is_pp_last_stage": _pp_last,
    "pipeline_parallel.utils.is_vp_last_stage": _vp_last,
    "pipeline_parallel.utils.get_pp_last_rank": _last_rank,
    f"{EMBEDDINGS}.setup_embeddings_and_output_layer": _set_up_embeddings,
    "distributed.finalize_model_grads._allreduce_word_embedding_grads": _reduce_embeddings,
    "utils.get_batch_on_this_tp_rank": _share_batch,
}
"""Functions that answer in place of Megatron's, by their names below ``megatron.core``."""
