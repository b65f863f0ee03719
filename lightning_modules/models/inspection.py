"""Facts about a model: its class without wrappers, the arguments of `forward`, its labels."""

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
"""Names of classes that wrap a whole model."""
_INNER_WRAPPERS = {"FullyShardedDataParallel", "CheckpointWrapper"}
"""Names of classes that wrap layers inside of a model."""


def to_call(model: object, wrapped: object) -> Any:
    """Return the wrapped model if it still is a wrapper of `model`; otherwise `model`.

    The user may have replaced the model after it was wrapped.
    """
    if unwrap_model(wrapped) is unwrap_model(model):
        return wrapped
    return model


def unwrap_model(model: Any) -> Any:
    """Return the user's model inside the wrappers of torch.compile, DDP, FSDP and DeepSpeed."""
    while True:
        inner = inside_compiled(model)
        if inner is None and type(model).__name__ in _WRAPPERS:
            inner = model.module
        if inner is None:
            return model
        model = inner


def inside_compiled(model: Any) -> nn.Module | None:
    """Return the module inside of a module that `torch.compile` returned; None for any other."""
    # The class is checked, since a wrapper such as DDP may forward `_orig_mod` to a compiled
    # module.
    if type(model).__name__ == "OptimizedModule":
        return model._orig_mod
    return None


def own_attribute(model: object, name: str) -> Any:
    """Return an attribute of an object or its class; None if neither has it.

    Unlike `getattr` it does not call `__getattr__`, by which wrappers forward to an inner model.
    """
    is_own = name in vars(model) or hasattr(type(model), name)
    if not is_own:
        return None
    return getattr(model, name)


@contextlib.contextmanager
def without_inner_wrappers(model: nn.Module) -> Iterator[Any]:
    """Remove the wrappers of layers in the block, so that each module has its original name.

    Do not use it while another thread calls the model.
    """
    # Collect all wrappers first: `modules` must not walk through a model that is being changed.
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
    """Return whether a module wraps a layer."""
    return class_of(module).__name__ in _INNER_WRAPPERS


def is_pretrained(model: nn.Module) -> bool:
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


def class_of(model: nn.Module) -> type:
    """Return the original class of a model, also after `fully_shard`."""
    model_class, *bases = type(model).__mro__
    # `fully_shard` makes a class with two bases: FSDPModule, and the original class.
    if bases[0].__name__ == "FSDPModule":
        return bases[1]
    return model_class


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Return whether `forward` accepts `num_items_in_batch`.

    The model may declare it in an attribute `accepts_loss_kwargs`. Otherwise the signature decides:
    it has the parameter, or accepts any keyword argument.
    """
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is not None:
        return declared
    parameters = inspect.signature(model.forward).parameters
    if "num_items_in_batch" in parameters:
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def signature_columns(model: nn.Module, label_names: Sequence[str]) -> list[str]:
    """Return the columns of a dataset that are used.

    They are the parameters of `model.forward`, and the names that collators turn into labels.
    """
    parameters = inspect.signature(model.forward).parameters
    # The keys of a dict are an ordered set.
    return list(dict.fromkeys([*parameters, "label", "label_ids", *label_names]))


def find_labels(model_class: type) -> list[str]:
    """List the arguments of a model's `forward` that hold labels.

    Works like `transformers.utils.find_labels`.

    Args:
        model_class: the class of the model.

    Returns:
        Their names, in the order of the signature.
    """
    names = inspect.signature(model_class.forward).parameters
    # The labels of extractive question answering are the ends of the answer.
    spans: set[str] = set()
    if "QuestionAnswering" in model_class.__name__:
        spans = {"start_positions", "end_positions"}
    return [name for name in names if "label" in name or name in spans]


def can_return_loss(model_class: type) -> bool:
    """Return whether a model computes its loss without labels.

    Works like `transformers.utils.can_return_loss`: its `forward` has an argument `return_loss`
    that is True by default.

    Args:
        model_class: the class of the model.
    """
    parameter = inspect.signature(model_class.forward).parameters.get("return_loss")
    return parameter is not None and parameter.default is True


def number_of_classes(model: nn.Module) -> int | None:
    """Return the number of classes of a model of `transformers` with integer labels.

    For a classifier it is `config.num_labels`, for a language model the number of rows of its
    output layer. It is None if it is unknown.
    """
    base = base_of_adapter(model)
    name = type(base).__name__
    config = getattr(base, "config", None)
    if name.endswith("Classification"):
        problem_type = getattr(config, "problem_type", None)
        classes = getattr(config, "num_labels", None)
        if problem_type not in (None, "single_label_classification"):
            return None
        # With one label the model is trained by regression.
        if not isinstance(classes, int) or classes < 2:
            return None
        return classes

    # The classes of a language model are the tokens of its output layer.
    is_language_model = name.endswith(("CausalLM", "LMHeadModel", "MaskedLM"))
    if not is_language_model or not hasattr(base, "get_output_embeddings"):
        return None
    return getattr(base.get_output_embeddings(), "out_features", None)


def accepted_arguments(function: object, **arguments: object) -> dict[str, Any]:
    """Return the arguments that a function accepts.

    Overrides with an older signature, which lacks some of the arguments, can be called this way.
    """
    names = _parameter_names(getattr(function, "__func__", function))
    if names is None or names.issuperset(arguments):
        return arguments
    return {name: value for name, value in arguments.items() if name in names}


def takes_by_position(function: object, count: int) -> bool:
    """Return whether a function or bound method takes this many arguments by their position.

    An override may have other names for its parameters.
    """
    most = _most_by_position(getattr(function, "__func__", function))
    if most is None:
        return True
    # The function of a method takes the object itself, too.
    if hasattr(function, "__func__"):
        most -= 1
    return most >= count


@functools.lru_cache(maxsize=64)
def _most_by_position(function: Any) -> int | None:
    """Return how many arguments a function takes by position; None for any number.

    Cached, since every epoch and every log call it.
    """
    parameters = inspect.signature(function).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in by_position for kind in kinds)


@functools.lru_cache(maxsize=64)
def _parameter_names(function: Any) -> frozenset[str] | None:
    """Return the names of the parameters; None if the function takes any keyword argument.

    Cached, since every step calls it.
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, in place; shared weights stay shared on torch_xla, too."""
    # torch's own method is called, since an override may not have the argument.
    names_of_parameters: dict[int, list[str]] = {}
    for name, parameter in nn.Module.named_parameters(model, remove_duplicate=False):
        names_of_parameters.setdefault(id(parameter), []).append(name)

    # On torch_xla this makes a new parameter for each name of a shared one.
    model.to(device)

    # Let all names of a shared parameter have the same one again.
    for first_name, *other_names in names_of_parameters.values():
        for name in other_names:
            shared = model.get_parameter(first_name)
            if model.get_parameter(name) is not shared:
                owner, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(owner), attribute, shared)


def predicts_next_token(model: nn.Module) -> bool:
    """Return whether a model is a causal language model, whose labels are its inputs.

    The name of its class decides: it is `...ForCausalLM`, or one that `transformers`, if it has
    been imported, lists as causal.

    Args:
        model: the model itself, without wrappers or adapters.
    """
    return _is_causal(type(model), loaded("transformers.models.auto.modeling_auto"))


@functools.lru_cache(maxsize=64)
def _is_causal(model_class: type, auto: Any) -> bool:
    """Return whether a class, or one that it inherits from, is causal.

    Cached, since every step may call it.
    """
    names = {base.__name__ for base in model_class.__mro__}
    if any(name.endswith("ForCausalLM") for name in names):
        return True
    if auto is None:
        return False
    return not names.isdisjoint(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def set_in_config(config: Any, name: str, value: Any) -> bool:
    """Set an attribute of a model's config, and return whether the config accepts it.

    The config of a model that is not of `transformers` may be a dict, a string or a frozen object,
    which do not.
    """
    try:
        setattr(config, name, value)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def loss_shifts_labels(model: nn.Module) -> bool:
    """Return whether the loss of a model drops the first label of each row.

    The causal loss of `transformers` drops it. The `loss_type` of the model names its loss.

    Args:
        model: the model; it may be in wrappers or adapters.
    """
    base = base_of_adapter(model)
    config = getattr(base, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return False
    loss_type = getattr(base, "loss_type", None)
    library = loaded("transformers.loss.loss_utils")
    if library is None:
        return loss_type == "ForCausalLM"
    return library.LOSS_MAPPING.get(loss_type) is library.ForCausalLMLoss


def shifts_smoothed_labels(model: nn.Module) -> bool:
    """Return whether label smoothing shifts the labels of a model.

    As in the reference, only the name of the class itself decides: the labels of a subclass with
    another name are not shifted.

    Args:
        model: the model; it may be in wrappers or adapters.
    """
    name = class_of(base_of_adapter(model)).__name__
    auto = loaded("transformers.models.auto.modeling_auto")
    if auto is not None:
        return name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return name.endswith("ForCausalLM")
