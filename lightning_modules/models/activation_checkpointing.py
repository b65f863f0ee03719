"""Activation checkpointing for any model: recompute activations in the backward pass."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..common.libraries import is_instance
from ..common.suggestions import did_you_mean

logger = logging.getLogger(__name__)

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def enable_activation_checkpointing(
    model: nn.Module, *, every_n_layers: int = 1, offload: bool = False, **options: object
) -> Callable[[], None]:
    """Enable activation checkpointing with the model's own method, or with
    `checkpoint_activations`.

    The model's method is `activation_checkpointing_enable`, or `gradient_checkpointing_enable` in
    older versions of `transformers`. As in the reference, it is not undone after training. Models
    without such a method are changed by `checkpoint_activations`.

    Args:
        model: the model, which is changed in place.
        every_n_layers: checkpoint every n-th layer, starting with the first.
        offload: offload the remaining saved tensors to the CPU.
        options: the options of `torch.utils.checkpoint.checkpoint`.

    Returns:
        A function that undoes `checkpoint_activations`. It does nothing if the model's method was
        used.

    Raises:
        ValueError: the model does not support these settings, or an option is unknown.
    """
    enable_newer = getattr(model, "activation_checkpointing_enable", None)
    enable_older = getattr(model, "gradient_checkpointing_enable", None)
    if callable(enable_newer):
        enable_newer(
            activation_checkpointing_kwargs=options or None,
            every_n_layers=every_n_layers,
            offload=offload,
        )
    elif callable(enable_older):
        enable_older(gradient_checkpointing_kwargs=options or None)
        _keep_every_nth_layer(model, every_n_layers)
        _offload(model, offload)
    else:
        return checkpoint_activations(
            model, every_n_layers=every_n_layers, offload=offload, **options
        )
    return lambda: None


def checkpoint_activations(
    model: nn.Module, *, every_n_layers: int = 1, offload: bool = False, **options: object
) -> Callable[[], None]:
    """Save only the inputs of each layer, and recompute its activations in the backward pass.

    Results are bitwise equal, even with dropout: RNG states are restored for the second forward
    pass, and batch norm statistics are updated only in the first one. Names, classes and weights of
    the model do not change, and evaluation is not affected.

    Args:
        model: the model, which is changed in place. Its layers are those of `find_layers`.
        every_n_layers: checkpoint every n-th layer, starting with the first. Other layers keep all
            activations.
        offload: offload the remaining saved tensors to the CPU, in pinned memory if there is a GPU.
        options: arguments of `torch.utils.checkpoint.checkpoint`. The default of `use_reentrant` is
            False.

    Returns:
        A function that undoes the change.

    Raises:
        ValueError: an option is unknown.
    """
    # torch reads `preserve_rng_state` from `kwargs`, so the signature does not have it.
    accepted = ["preserve_rng_state"]
    for name in inspect.signature(checkpoint).parameters:
        if name not in ("function", "args", "kwargs"):
            accepted.append(name)
    for name in options:
        if name not in accepted:
            raise ValueError(
                f"gradient_checkpointing_kwargs has no option {name!r}."
                f"{did_you_mean(name, accepted)} The options are: {', '.join(accepted)}."
            )

    layers = find_layers(model)[::every_n_layers]
    names = ", ".join(name or type(model).__name__ for name, _ in layers)
    logger.info("Activations of these layers are recomputed in the backward pass: %s", names)
    for _, layer in layers:
        layer.forward = _CheckpointedForward(layer, offload, {"use_reentrant": False, **options})

    def undo() -> None:
        for _, layer in layers:
            checkpointed: _CheckpointedForward = layer.__dict__.pop("forward")
            if checkpointed.instance_forward is not None:
                layer.forward = checkpointed.instance_forward

    return undo


def checkpoint_layers(model: nn.Module, layers: list[str]) -> None:
    """Recompute the activations of the named modules in the backward pass."""
    for name in layers:
        layer = model.get_submodule(name)
        layer.forward = _CheckpointedForward(layer, False, {"use_reentrant": False})


def find_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of a model that run in sequence, with their names.

    These are the blocks of a transformer or a ResNet: modules with submodules that share a module
    list with another module of the same class. In a model without such a list, they are the direct
    children that have submodules. Without such children, the model itself is the only layer, which
    does not reduce peak memory.
    """
    layers = list(_find_repeated_layers(model, ""))
    if not layers:
        for name, child in model.named_children():
            if _has_children_and_parameters(child):
                layers.append((name, child))
    return layers or [("", model)]


def _find_repeated_layers(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers in module lists, without looking inside of layers."""
    class_counts: Counter[type] = Counter()
    if isinstance(module, _CONTAINERS):
        class_counts.update(type(child) for child in module.children())
    for name, child in module.named_children():
        full_name = name
        if path:
            full_name = f"{path}.{name}"
        if class_counts[type(child)] > 1 and _has_children_and_parameters(child):
            yield full_name, child
        else:
            yield from _find_repeated_layers(child, full_name)


def _has_children_and_parameters(module: nn.Module) -> bool:
    """Return whether a module may be a layer: it has submodules and parameters."""
    has_children = next(module.children(), None) is not None
    return has_children and next(module.parameters(), None) is not None


class _CheckpointedForward:
    """Replacement of a layer's `forward` that recomputes activations in the backward pass.

    It references the layer, so that copying the model also copies this object.
    """

    def __init__(self, layer: nn.Module, offload: bool, options: dict[str, Any]) -> None:
        self.layer = layer
        # The `forward` that was set on the instance; None if only the class defines it.
        self.instance_forward: Callable[..., Any] | None = layer.__dict__.get("forward")
        self.offload = offload
        self.options = options
        self.has_running_statistics = any(map(_tracks_statistics, layer.modules()))

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature of the layer's own `forward`."""
        return inspect.signature(self._forward)

    @property
    def _forward(self) -> Callable[..., object]:
        """Return the layer's own `forward`."""
        if self.instance_forward is None:
            return functools.partial(type(self.layer).forward, self.layer)
        return self.instance_forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward
        # Without a backward pass, nothing is recomputed.
        if not (self.layer.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if self.has_running_statistics:
            forward = _with_statistics_updated_once(self.layer, forward)

        # torch restores the RNG of a device only if a positional argument is a tensor on that
        # device.
        forward = _with_positional_arguments(forward, len(args), list(kwargs))
        with _saved_on_host(self.offload):
            return checkpoint(forward, *args, *kwargs.values(), **self.options)


def _tracks_statistics(module: nn.Module) -> bool:
    """Return whether a module updates running statistics, as batch normalisation does."""
    return getattr(module, "track_running_stats", False)


def _with_positional_arguments(
    forward: Callable[..., object], count: int, names: list[str]
) -> Callable[..., object]:
    """Return a function that accepts all arguments of `forward` by position.

    Args:
        forward: the function to call.
        count: number of positional arguments to pass to it.
        names: names of the keyword arguments, whose values follow the positional ones.
    """

    def forward_by_position(*values: object) -> object:
        args = values[:count]
        kwargs = dict(zip(names, values[count:], strict=True))
        return forward(*args, **kwargs)

    return forward_by_position


def _with_statistics_updated_once(
    layer: nn.Module, forward: Callable[..., object]
) -> Callable[..., object]:
    """Return a forward pass that updates running statistics only in its first run."""
    runs = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs == 1:
            return forward(*args, **kwargs)
        with _without_updating_statistics(layer):
            return forward(*args, **kwargs)

    return run


@contextlib.contextmanager
def _without_updating_statistics(layer: nn.Module) -> Iterator[None]:
    """Replace running statistics by copies within the `with` block, so that they do not change."""
    modules = [module for module in layer.modules() if _tracks_statistics(module)]
    original_buffers = [dict(module._buffers) for module in modules]
    for module in modules:
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = value.clone()
    try:
        yield
    finally:
        for module, buffers in zip(modules, original_buffers, strict=True):
            module._buffers.update(buffers)


def _saved_on_host(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """Offload tensors that autograd saves in the `with` block to the CPU, if enabled."""
    if not enabled:
        return contextlib.nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())


def _keep_every_nth_layer(model: nn.Module, every_n_layers: int) -> None:
    """Disable checkpointing for all but every n-th layer of a `transformers` model."""
    if every_n_layers == 1:
        return
    library = "transformers.modeling_layers"
    layers: list[Any] = []
    for module in model.modules():
        if is_instance(module, library, "GradientCheckpointingLayer"):
            layers.append(module)
    if not layers:
        raise ValueError(
            f"{every_n_layers=} is not supported for {type(model).__name__}, which does not mark "
            "its layers (GradientCheckpointingLayer). Remove it."
        )
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index % every_n_layers == 0


def _offload(model: nn.Module, offload: bool) -> None:
    """Make the checkpointing function of a `transformers` model offload to the CPU."""
    if not offload:
        return
    modules: list[Any] = []
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            modules.append(module)
    if not modules:
        raise ValueError(
            f"{offload=} is not supported for {type(model).__name__}, whose layers have no "
            "checkpointing function (_gradient_checkpointing_func). Remove it."
        )
    for module in modules:
        run = module._gradient_checkpointing_func
        module._gradient_checkpointing_func = functools.partial(_run_offloaded, run)


def _run_offloaded(run: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call a checkpointing function with its saved tensors offloaded to the CPU."""
    with _saved_on_host(True):
        return run(*args, **kwargs)
