"""Inspect a model: its class, its arguments, and whether it predicts the next token."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..common.libraries import is_instance, loaded

_WRAPPERS = {
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
}
_INNER_WRAPPERS = {"FullyShardedDataParallel", "CheckpointWrapper"}


def to_call(model: Any, wrapped: Any) -> Any:
    """Return `wrapped` if it is `model` or a wrapper of it, otherwise `model`, which has been
    replaced.
    """
    if unwrap_model(wrapped) is unwrap_model(model):
        return wrapped
    return model


def unwrap_model(model: Any) -> Any:
    """Return the user's model under DistributedDataParallel, FSDP, DeepSpeed, DataParallel and
    torch.compile.
    """
    while True:
        inner = inside_compiled(model)
        if inner is None and type(model).__name__ in _WRAPPERS:
            inner = model.module
        if inner is None:
            return model
        model = inner


def inside_compiled(model: Any) -> nn.Module | None:
    """Return the module that `torch.compile` wraps; None for others, also wrappers that forward
    to a compiled one.
    """
    if type(model).__name__ == "OptimizedModule":
        return model._orig_mod
    return None


def own_attribute(model: Any, name: str) -> Any:
    """Return an attribute of an object or its class, or None.

    Unlike `getattr` it is not answered by a `__getattr__`, by which wrappers forward to an inner
    model.
    """
    is_own = name in vars(model) or hasattr(type(model), name)
    if not is_own:
        return None
    return getattr(model, name)


@contextlib.contextmanager
def without_inner_wrappers(model: Any) -> Iterator[Any]:
    """Remove the wrappers of layers from a model in the block, so that each module has its original
    name.

    Not safe while another thread calls the model.
    """
    # All are found before the first is removed, as `modules` walks through the model.
    wrapped: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in model.modules():
        for name, child in parent.named_children():
            if _is_inner_wrapper(child):
                wrapped.append((parent, name, child))

    for parent, name, child in wrapped:
        # One wrapper may be inside another.
        inner = child
        while _is_inner_wrapper(inner):
            inner = next(inner.children())
        setattr(parent, name, inner)
    try:
        yield model
    finally:
        for parent, name, child in wrapped:
            setattr(parent, name, child)


def _is_inner_wrapper(module: nn.Module) -> bool:
    return class_of(module).__name__ in _INNER_WRAPPERS


def is_pretrained(model: Any) -> bool:
    """Return whether a model is one of `transformers`, without importing it."""
    return is_instance(model, "transformers.modeling_utils", "PreTrainedModel")


def base_of_adapter(model: Any) -> Any:
    """Return the model under a PEFT adapter and torch's wrappers, or the model itself."""
    model = unwrap_model(model)
    if not is_instance(model, "peft", "PeftModel", "PeftMixedModel"):
        return model
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model.base_model.model


def class_of(model: Any) -> type:
    """Return the original class of a model, also under that of `fully_shard`."""
    own_class, *bases = type(model).__mro__
    # It makes a class with two bases: its own, and the original.
    if bases[0].__name__ == "FSDPModule":
        return bases[1]
    return own_class


def overrides_mode(model: nn.Module) -> bool:
    """Return whether a model, or a module below it, has its own `train` or `eval`, by its class or
    as an attribute.

    Args:
        model: the model; torch's wrappers around it do not count.
    """
    for module in unwrap_model(model).modules():
        by_class = (
            type(module).train is not nn.Module.train or type(module).eval is not nn.Module.eval
        )
        by_attribute = not vars(module).keys().isdisjoint(("train", "eval"))
        if by_class or by_attribute:
            return True
    return False


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Return whether `forward` accepts `num_items_in_batch`: the model declares it, or takes any
    keyword argument.
    """
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is not None:
        return declared
    parameters = inspect.signature(model.forward).parameters
    return "num_items_in_batch" in parameters or any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )


def signature_columns(model: nn.Module, label_names: Sequence[str]) -> list[str]:
    """Return the names that `model.forward` takes, and those that collators turn into labels."""
    parameters = inspect.signature(model.forward).parameters
    # In this order, and each once.
    return list(dict.fromkeys([*parameters, "label", "label_ids", *label_names]))


def find_labels(model_class: type) -> list[str]:
    """As `transformers.utils.find_labels`: the arguments of `forward` that hold labels."""
    names = inspect.signature(model_class.forward).parameters
    spans: set[str] = set()
    if "QuestionAnswering" in model_class.__name__:
        spans = {"start_positions", "end_positions"}
    return [name for name in names if "label" in name or name in spans]


def can_return_loss(model_class: type) -> bool:
    """As `transformers.utils.can_return_loss`: `forward` has `return_loss=True`, so it needs no
    labels.
    """
    parameter = inspect.signature(model_class.forward).parameters.get("return_loss")
    return parameter is not None and parameter.default is True


def number_of_classes(model: nn.Module) -> int | None:
    """Return the number of classes that integer labels of a model of `transformers` name; None
    where that is unknown.

    For a classifier these are `config.num_labels`, for a language model the rows of its output
    layer.
    """
    base = base_of_adapter(model)
    name = type(base).__name__
    config = getattr(base, "config", None)
    if name.endswith("Classification"):
        single_label = getattr(config, "problem_type", None) in (
            None,
            "single_label_classification",
        )
        classes = getattr(config, "num_labels", None)
        # With one label the model is trained by regression.
        return classes if single_label and isinstance(classes, int) and classes > 1 else None

    is_language_model = name.endswith(("CausalLM", "LMHeadModel", "MaskedLM"))
    if not is_language_model or not hasattr(base, "get_output_embeddings"):
        return None
    return getattr(base.get_output_embeddings(), "out_features", None)


def accepted_arguments(function: Any, **arguments: Any) -> dict[str, Any]:
    """Return those of `arguments` that `function` accepts, so that overrides with an older
    signature still work.
    """
    names = _parameter_names(getattr(function, "__func__", function))
    if names is None or names.issuperset(arguments):
        return arguments
    return {name: value for name, value in arguments.items() if name in names}


@functools.lru_cache(maxsize=64)
def _parameter_names(function: Any) -> frozenset[str] | None:
    """Return names of the parameters; None if it takes any keyword. Cached, since every step
    calls it.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, in place; weights that are shared stay shared, on devices of
    torch_xla too.
    """
    # By torch's own method, as an override may not have the argument.
    places: dict[int, list[str]] = {}
    for name, parameter in nn.Module.named_parameters(model, remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)

    # For torch_xla this makes new parameters, one for each place.
    model.to(device)

    for first, *others in places.values():
        for name in others:
            shared = model.get_parameter(first)
            if model.get_parameter(name) is not shared:
                owner, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(owner), attribute, shared)


def predicts_next_token(model: Any) -> bool:
    """Return whether a model is a causal language model, with its inputs, shifted by one, as
    labels.

    Decided by the name of its class: `...ForCausalLM`, or one that `transformers`, if loaded, lists
    as causal.

    Args:
        model: the model itself, without wrappers or adapters.
    """
    return _is_causal(type(model), loaded("transformers.models.auto.modeling_auto"))


@functools.lru_cache(maxsize=64)
def _is_causal(model_class: type, auto: Any) -> bool:
    """Return whether a class, or one that it inherits from, is causal. Cached, since every step
    may call it.
    """
    names = {base.__name__ for base in model_class.__mro__}
    if any(name.endswith("ForCausalLM") for name in names):
        return True
    if auto is None:
        return False
    return not names.isdisjoint(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def loss_shifts_labels(model: Any) -> bool:
    """Return whether the loss of a model drops the first label of each row, as the causal one of
    `transformers`.

    Args:
        model: the model, also in wrappers or adapters; its `loss_type` decides.
    """
    inner = base_of_adapter(model)
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return False
    kind = getattr(inner, "loss_type", None)
    library = loaded("transformers.loss.loss_utils")
    if library is None:
        return kind == "ForCausalLM"
    return library.LOSS_MAPPING.get(kind) is library.ForCausalLMLoss


def shifts_smoothed_labels(model: Any) -> bool:
    """Return whether label smoothing shifts labels for a model: as in the reference, by its class's
    own name alone.

    A subclass of another name is not shifted.

    Args:
        model: the model, also in wrappers or adapters.
    """
    name = class_of(base_of_adapter(model)).__name__
    auto = loaded("transformers.models.auto.modeling_auto")
    if auto is not None:
        return name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return name.endswith("ForCausalLM")
