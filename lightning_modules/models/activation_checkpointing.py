"""Activation checkpointing for models of any kind: recompute activations in the backward pass."""

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
    model: nn.Module, *, every_n_layers: int = 1, offload: bool = False, **options: Any
) -> Callable[[], None]:
    """As `transformers.Trainer`, through the model's own method, but for models without one too.

    A method `activation_checkpointing_enable` goes before `gradient_checkpointing_enable`, of which
    the older models of `transformers` have only the latter; it stays enabled, as in the reference.
    Other models go through `checkpoint_activations`.

    Args:
        model: changed in place.
        every_n_layers: see `checkpoint_activations`, as is the rest.
        offload: see there.
        options: see there.

    Returns:
        What takes off again what is not the model's own.

    Raises:
        ValueError: the model says that it cannot, or that it does not know these settings.
    """
    newer = getattr(model, "activation_checkpointing_enable", None)
    older = getattr(model, "gradient_checkpointing_enable", None)
    if callable(newer):
        newer(
            activation_checkpointing_kwargs=options or None,
            every_n_layers=every_n_layers,
            offload=offload,
        )
    elif callable(older):
        older(gradient_checkpointing_kwargs=options or None)
        _thin_out(model, every_n_layers)
        _offload(model, offload)
    else:
        return checkpoint_activations(
            model, every_n_layers=every_n_layers, offload=offload, **options
        )
    return lambda: None


def checkpoint_activations(
    model: nn.Module, *, every_n_layers: int = 1, offload: bool = False, **options: Any
) -> Callable[[], None]:
    """Make each layer of a model keep only its inputs, and recompute its forward pass for the
    backward pass.

    Results are the same to the last bit, with dropout too: the generators are reset for the second
    run, and statistics of batch normalisation are updated only in the first one. Names, classes and
    weights of the model are not changed, and evaluation is not affected.

    Args:
        model: changed in place; `find_layers` says what its layers are.
        every_n_layers: take only every so many-th layer, the first one included; the others keep
            everything.
        offload: keep in main memory, page-locked where there is a GPU, what still has to be kept.
        options: for `torch.utils.checkpoint.checkpoint`; `use_reentrant` is False if not given.

    Returns:
        What makes the model as it was.
    """
    parameters = inspect.signature(checkpoint).parameters
    known = [
        "preserve_rng_state",
        *(name for name in parameters if name not in ("function", "args", "kwargs")),
    ]
    for name in options:
        if name not in known:
            raise ValueError(
                f"gradient_checkpointing_kwargs has {name!r}.{did_you_mean(name, known)} There "
                f"are: {', '.join(known)}."
            )
    layers = find_layers(model)[::every_n_layers]
    shown = ", ".join(name or type(model).__name__ for name, _ in layers)
    logger.info("Activations are computed again in the backward pass, for: %s", shown)
    for _, layer in layers:
        layer.forward = _ForwardTwice(layer, offload, {"use_reentrant": False, **options})

    def undo() -> None:
        for _, layer in layers:
            recomputed = layer.__dict__.pop("forward")
            if recomputed.own is not None:
                layer.forward = recomputed.own

    return undo


def checkpoint_layers(model: nn.Module, layers: list[str]) -> None:
    """Recompute the activations of the named modules in the backward pass."""
    for layer in map(model.get_submodule, layers):
        layer.forward = _ForwardTwice(layer, False, {"use_reentrant": False})


def find_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of a model that run in sequence, with their names.

    These are the members of module lists with at least two of one class that have submodules
    themselves: the blocks of a transformer or a ResNet. Without such a list they are the direct
    children that have submodules, and without these the model as a whole, which does not reduce the
    peak.
    """
    found = list(_repeated(model, ""))
    if not found:
        found = [(name, part) for name, part in model.named_children() if _is_composed(part)]
    return found or [("", model)]


def _repeated(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    classes = (
        Counter(type(part) for part in module.children()) if isinstance(module, _CONTAINERS) else {}
    )
    for name, part in module.named_children():
        full_name = f"{path}.{name}" if path else name
        if classes.get(type(part), 0) > 1 and _is_composed(part):
            yield full_name, part
        else:
            yield from _repeated(part, full_name)


def _is_composed(module: nn.Module) -> bool:
    return next(module.children(), None) is not None and next(module.parameters(), None) is not None


class _ForwardTwice:
    """Replacement of a layer's `forward`. It holds the layer, so that a copy of the model has a
    copy of this.
    """

    def __init__(self, layer: nn.Module, offload: bool, options: dict[str, Any]) -> None:
        self.layer = layer
        self.own = layer.__dict__.get("forward")
        self.offload = offload
        self.options = options
        self.counts = any(getattr(part, "track_running_stats", False) for part in layer.modules())

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature of the layer's own `forward`."""
        return inspect.signature(self._forward)

    @property
    def _forward(self) -> Callable[..., Any]:
        return (
            functools.partial(type(self.layer).forward, self.layer)
            if self.own is None
            else self.own
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward
        if not (self.layer.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        run = forward
        if self.counts:
            run = _counting_once(self.layer, forward)

        # torch resets the generator of a device only if a tensor among the positional arguments is
        # on that device.
        run = _by_position(run, len(args), list(kwargs))
        with _saved_on_host(self.offload):
            return checkpoint(run, *args, *kwargs.values(), **self.options)


def _by_position(run: Callable[..., Any], count: int, names: list[str]) -> Callable[..., Any]:
    """Return a function that takes arguments by position: `count` of them, and then those with
    these names.
    """

    def run_by_position(*values: Any) -> Any:
        args = values[:count]
        kwargs = dict(zip(names, values[count:], strict=True))
        return run(*args, **kwargs)

    return run_by_position


def _counting_once(layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward pass, with running statistics updated only in its first run."""
    runs = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal runs
        runs += 1
        with contextlib.nullcontext() if runs == 1 else _statistics_set_aside(layer):
            return forward(*args, **kwargs)

    return run


@contextlib.contextmanager
def _statistics_set_aside(layer: nn.Module) -> Iterator[None]:
    """Update copies of the running statistics, which are dropped after the block."""
    parts = [part for part in layer.modules() if getattr(part, "track_running_stats", False)]
    kept = [dict(part._buffers) for part in parts]
    for part in parts:
        part._buffers.update(
            {
                name: None if value is None else value.clone()
                for name, value in part._buffers.items()
            }
        )
    try:
        yield
    finally:
        for part, buffers in zip(parts, kept, strict=True):
            part._buffers.update(buffers)


def _saved_on_host(active: bool) -> contextlib.AbstractContextManager[Any]:
    if not active:
        return contextlib.nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())


def _thin_out(model: nn.Module, every_n_layers: int) -> None:
    """Leave only every n-th of a `transformers` model's enabled layers enabled."""
    if every_n_layers == 1:
        return
    library = "transformers.modeling_layers"
    layers: list[Any] = [
        one for one in model.modules() if is_instance(one, library, "GradientCheckpointingLayer")
    ]
    if not layers:
        raise ValueError(
            f"{every_n_layers=}: {type(model).__name__} does not say which parts are layers. Leave "
            "it out."
        )
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index % every_n_layers == 0


def _offload(model: nn.Module, offload: bool) -> None:
    """Make the checkpointing function of a `transformers` model offload to main memory."""
    if not offload:
        return
    parts: list[Any] = [
        part for part in model.modules() if hasattr(part, "_gradient_checkpointing_func")
    ]
    if not parts:
        raise ValueError(
            f"{offload=}: {type(model).__name__} does not say how its layers are run. Leave it out."
        )
    for part in parts:
        part._gradient_checkpointing_func = functools.partial(
            _run_offloaded, part._gradient_checkpointing_func
        )


def _run_offloaded(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _saved_on_host(True):
        return run(*args, **kwargs)
