"""The names of Megatron-LM that :mod:`debubble.megatron` uses, checked before they are.

Every release changes some of them. What differs between releases stands here as data; a release
that lacks a name or a parameter is refused, with the one that is missing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any

from debubble.core.errors import DebubbleError, ParameterError

KNOWN = "0.15 to 0.19"
"""Releases of megatron-core that the tests run."""

SCHEDULES = "pipeline_parallel.schedules"
STATE = "parallel_state"

REPLACED = (
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
"""Functions that ``get_forward_backward_func`` looks up when it is called."""

ALONE = "forward_backward_no_pipelining"
"""Function for jobs with one pipeline rank."""


@dataclass
class MegatronCall:
    """Arguments of one call of a forward-backward function, by Megatron's names."""

    forward_step_func: Callable[..., Any]
    data_iterator: Any
    model: Any
    num_microbatches: int
    seq_length: int
    micro_batch_size: int
    decoder_seq_length: int | None = None
    forward_only: bool = False
    collect_non_loss_data: bool = False
    first_val_step: bool | None = None
    adjust_tensor_shapes_fn: Any = None
    """Not needed: shapes are learned."""
    p2p_communicator: Any = None
    """Used for its group alone."""
    pg_collection: Any = None
    force_all_reduce: bool = False
    """In releases from 0.16 on."""

    @property
    def chunks(self) -> list[Any]:
        """Model chunks of this rank, in the sequence of their stages."""
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]

    @property
    def iterators(self) -> list[Any]:
        """Data iterators of the chunks."""
        many = isinstance(self.data_iterator, list | tuple)
        return list(self.data_iterator) if many else [self.data_iterator]


SINCE_0_16 = ("force_all_reduce",)

FORWARD_STEP = (
    "forward_step_func", "data_iterator", "model", "num_microbatches", "input_tensor",
    "forward_data_store", "config", "cp_group_size", "collect_non_loss_data",
    "is_first_microbatch", "current_microbatch", "vp_stage", "is_last_stage",
)  # fmt: skip

KEYWORDS = tuple(spec.name for spec in fields(MegatronCall) if spec.name not in SINCE_0_16)

GROUPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tp": ("get_tensor_model_parallel_group", {}),
    "cp": ("get_context_parallel_group", {}),
    "pp": ("get_pipeline_model_parallel_group", {}),
    "embd": ("get_embedding_group", {"check_initialized": False}),
    "pos_embd": ("get_position_embedding_group", {"check_initialized": False}),
    "dp": ("get_data_parallel_group", {"with_context_parallel": False}),
    "dp_cp": ("get_data_parallel_group", {"with_context_parallel": True}),
    "tp_dp_cp": (
        "get_tensor_and_data_parallel_group",
        {"check_initialized": False, "with_context_parallel": True},
    ),
}
"""Process groups of a job by their names in a collection, and the functions that return them."""

USED: Mapping[str, Sequence[str]] = {
    f"{SCHEDULES}.forward_step": FORWARD_STEP,
    f"{SCHEDULES}.get_forward_backward_func": (),
    f"{SCHEDULES}.{ALONE}": (),
    **{f"{SCHEDULES}.{name}": KEYWORDS for name in REPLACED},
    f"{SCHEDULES}.clear_embedding_activation_buffer": ("config", "model", "is_last_stage"),
    f"{SCHEDULES}.finish_embedding_wgrad_compute": (
        "config", "embedding_module", "is_last_stage", "tp_group",
    ),
    "utils.get_model_config": ("model",),
    "process_groups_config.ProcessGroupCollection": (),
    **{f"{STATE}.{name}": tuple(given) for name, given in GROUPS.values()},
}  # fmt: skip
"""Names below ``megatron.core``, and parameters that calls of them have."""


class Megatron:
    """The installed release of megatron-core."""

    def __init__(self) -> None:
        try:
            self.release = str(importlib.import_module("megatron.core").__version__)
            self.schedules: Any = _module(SCHEDULES)
        except ModuleNotFoundError as error:
            raise DebubbleError(
                f"debubble.megatron needs megatron-core, and '{error.name}' is missing; "
                "pip install 'debubble[megatron]'"
            ) from None
        for name, wanted in USED.items():
            self._check(name, wanted)
        used = inspect.unwrap(self.schedules.get_forward_backward_func).__code__.co_names
        for name in REPLACED:
            if name not in used:
                raise self._differs(f"get_forward_backward_func no longer looks up '{name}'")
        self.signature = inspect.signature(getattr(self.schedules, REPLACED[0]))
        """Signature of forward-backward functions."""

    def call(self, given: Mapping[str, Any]) -> MegatronCall:
        """Return the arguments of a call; refuse one that only a newer Megatron knows."""
        bound = self.signature.bind(**given)
        known = {spec.name for spec in fields(MegatronCall)}
        for name, value in bound.arguments.items():
            if name not in known and value != self.signature.parameters[name].default:
                raise ParameterError(
                    f"{name}= is not known: debubble.megatron knows megatron-core {KNOWN}, and "
                    f"this is {self.release}; leave it out, or use dm.uninstall()"
                )
        return MegatronCall(
            **{name: value for name, value in bound.arguments.items() if name in known}
        )

    def config_of(self, model: Any) -> Any:
        """Return the configuration of a model chunk."""
        return _module("utils").get_model_config(model)

    def groups_of(self, call: MegatronCall) -> Any:
        """Return the process groups of a call, by default those of ``parallel_state``."""
        if (call.p2p_communicator is None) != (call.pg_collection is None):
            raise ParameterError("give both p2p_communicator and pg_collection, or neither")
        if call.pg_collection is not None:
            kind = _module("process_groups_config").ProcessGroupCollection
            if not isinstance(call.pg_collection, kind):
                raise ParameterError(
                    f"pg_collection is a {type(call.pg_collection).__name__}, for several modules; "
                    "debubble.megatron runs one: use dm.uninstall() for this call"
                )
            return call.pg_collection
        groups = _module("process_groups_config").ProcessGroupCollection()
        state = _module(STATE)
        for name, (getter, options) in GROUPS.items():
            setattr(groups, name, getattr(state, getter)(**options))
        return groups

    def finalize(
        self, config: Any, chunks: list[Any], tokens: Any, groups: Any, call: MegatronCall
    ) -> None:
        """Call the job's ``finalize_model_grads_func``."""
        known = self.signature.parameters
        options = {name: getattr(call, name) for name in SINCE_0_16 if name in known}
        config.finalize_model_grads_func(
            chunks, tokens if config.calculate_per_token_loss else None,
            pg_collection=groups, **options,
        )  # fmt: skip

    def _check(self, name: str, wanted: Iterable[str]) -> None:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(_module(module), attribute, None)
        except ModuleNotFoundError as error:
            if error.name != f"megatron.core.{module}":
                raise
            found = None
        if found is None:
            raise self._differs(f"megatron.core.{name} is gone")
        if not wanted:
            return
        parameters = inspect.signature(found).parameters
        lost = [one for one in wanted if one not in parameters]
        if lost:
            raise self._differs(f"megatron.core.{name} has no parameter '{lost[0]}'")

    def _differs(self, what: str) -> DebubbleError:
        return DebubbleError(
            f"megatron-core {self.release}: {what}; debubble.megatron knows {KNOWN}: install one "
            "of these, or a newer debubble"
        )


def _module(name: str) -> Any:
    return importlib.import_module(f"megatron.core.{name}")


def overlaps_reduction(chunk: Any) -> bool:
    """Return if a chunk is Megatron's DDP, and reduces gradients while backwards run."""
    return bool(getattr(getattr(chunk, "ddp_config", None), "overlap_grad_reduce", False))


def start_grad_sync(chunk: Any) -> None:
    """Begin to reduce all gradients of a chunk of Megatron's DDP."""
    forced = getattr(chunk, "force_all_reduce", False)
    for group in [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]:
        if forced:
            group.start_grad_sync(force_all_reduce=True)
        else:
            group.start_grad_sync()


def delayed_layers(chunk: Any) -> list[Any]:
    """Return the layers of a chunk whose ``backward_dw()`` computes weight gradients later.

    They are TransformerEngine's, made with ``delay_wgrad_compute``. Megatron's modules above them
    have such a method, too, which calls theirs.
    """
    return [
        part for part in chunk.modules()
        if callable(getattr(part, "backward_dw", None)) and _delays(part)
    ]  # fmt: skip


def _delays(layer: Any) -> bool:
    store = getattr(layer, "wgrad_store", None)
    return store is not None and bool(store.delay_wgrad_compute())


BY_STAGE = (
    f"{STATE}.is_pipeline_first_stage",
    f"{STATE}.is_pipeline_last_stage",
    "transformer.transformer_block.get_num_layers_to_build",
    "transformer.transformer_layer.get_transformer_layer_offset",
    "transformer.pipeline_parallel_layer_layout.PipelineParallelLayerLayout.get_layer_offset",
    "transformer.pipeline_parallel_layer_layout.PipelineParallelLayerLayout.get_num_layers_to_build",
    "transformer.multi_token_prediction.get_mtp_layer_offset",
    "transformer.multi_token_prediction.get_mtp_num_layers_to_build",
    "transformer.multi_token_prediction.mtp_on_this_rank",
)
"""Functions of the stage of a chunk (``vp_stage``) on a rank."""

NOT_EVERYWHERE = {
    "transformer.multi_token_prediction.mtp_on_this_rank",
    "utils.get_batch_on_this_tp_rank",
}
"""Functions that some known releases lack, or have in Megatron's scripts alone."""

EMBEDDINGS = "models.common.language_module.language_module.LanguageModule"
"""Class of models that share the weights of embeddings."""


def parallel_state() -> Any:
    """Return the module that has the ranks and groups of the job."""
    return _module(STATE)


def part_of_model(chunk: Any, name: str) -> Any:
    """Return an attribute of a model chunk, below its wrappers; None where none has it."""
    while not hasattr(chunk, name) and hasattr(chunk, "module"):
        chunk = chunk.module
    return getattr(chunk, name, None)


def layers_of(chunk: Any, vp_stage: int) -> tuple[int | None, int | None]:
    """Return the number of the first layer of a chunk, and that which its placement has there."""
    layers = getattr(part_of_model(chunk, "decoder"), "layers", None)
    if not layers:
        return None, None
    module = _module("transformer.transformer_layer")
    config = _module("utils").get_model_config(chunk)
    return layers[0].layer_number, 1 + module.get_transformer_layer_offset(config, vp_stage)


def embedding_weight(chunk: Any) -> Any:
    """Return the weight of the embedding in a chunk, if other chunks have copies of it."""
    if part_of_model(chunk, "pre_process") is None:
        return None
    config = _module("utils").get_model_config(chunk)
    shared = part_of_model(chunk, "share_embeddings_and_output_weights")
    if not shared and not getattr(config, "mtp_num_layers", None):
        return None
    return part_of_model(chunk, "shared_embedding_or_output_weight")()


def gradient_of(weight: Any) -> Any:
    """Return the gradient that the optimizer takes."""
    return weight.main_grad if hasattr(weight, "main_grad") else weight.grad


ANSWERS: dict[str, Callable[..., Any]] = {}
"""Functions that answer in place of Megatron's, by their names below ``megatron``."""


class Replacements:
    """Functions of Megatron that run others, also where they were imported by name.

    A function stays the same object: its code is replaced.
    """

    def __init__(self) -> None:
        self._own: dict[str, tuple[FunctionType, FunctionType]] = {}
        """By name, the function and a copy that runs Megatron's code."""
        self.missing: set[str] = set()
        """Names that the installed release lacks."""

    def put(self, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Have a function run what `wrap` makes of it, where the release has it."""
        for full in (f"megatron.core.{name}", f"megatron.training.{name}"):
            function = _find(full)
            if full in self._own or not isinstance(function, FunctionType):
                continue
            own = FunctionType(
                function.__code__, function.__globals__, function.__name__,
                function.__defaults__, function.__closure__,
            )  # fmt: skip
            own.__kwdefaults__ = function.__kwdefaults__
            if own.__closure__:
                raise DebubbleError(f"{full} is wrapped by another tool; call dm.install before it")
            self._own[full] = function, own
            ANSWERS[full] = wrap(own)
            found: dict[str, Any] = {}
            exec(ASK.format(full), found)
            function.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
            function.__code__ = found["ask"].__code__
            function.__defaults__ = function.__kwdefaults__ = None
        found_in = {full.split(".", 2)[2] for full in self._own}
        if name not in found_in | NOT_EVERYWHERE:
            self.missing.add(name)

    def undo(self) -> None:
        """Give Megatron its own functions back."""
        for full, (function, own) in self._own.items():
            function.__code__, function.__defaults__ = own.__code__, own.__defaults__
            function.__kwdefaults__ = own.__kwdefaults__
            del function.__signature__  # type: ignore[attr-defined]
            del ANSWERS[full]
        self._own.clear()
        self.missing.clear()


ASK = """
def ask(*args, **kwargs):
    from debubble.megatron.internals import ANSWERS
    return ANSWERS[{!r}](*args, **kwargs)
"""


def _find(name: str) -> Any:
    """Return a function of a module, or of a class in one; None where there is none."""
    path, _, attribute = name.rpartition(".")
    if path.startswith("megatron.training"):
        return getattr(sys.modules.get(path), attribute, None)  # importing it sets up a job
    try:
        holder: Any = importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, kind = path.rpartition(".")
        holder = getattr(importlib.import_module(module), kind, None)
    return getattr(holder, attribute, None)
