"""Shard the layers of a model over processes (tensor parallel) by the model's plan.

A plan maps names of modules to sharding styles:
`{"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}`. Modules that are not in the plan are
replicated in all processes of the group.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ..common.seeding import capture_host_rng, restore_host_rng
from ..common.suggestions import did_you_mean
from .tensor_parallel_styles import STYLES, Style, as_style

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

logger = logging.getLogger(__name__)


def tensor_parallel_plan(model: nn.Module) -> dict[str, Any]:
    """Return a model's plan.

    It is its `tp_plan`, or those of `transformers`: `_tp_plan` and that of the configuration.
    """
    own: dict[str, Any] = {}
    for name in ("tp_plan", "_tp_plan"):
        plan = getattr(model, name, None)
        if isinstance(plan, Mapping) and plan:
            own = dict(plan)
            break

    # That of the configuration is about the model below its head.
    base = _base_plan(model) or {}
    prefix = getattr(model, "base_model_prefix", "")
    if prefix and isinstance(getattr(model, prefix, None), nn.Module):
        base = {f"{prefix}.{name}": style for name, style in base.items()}
    return {**base, **own}


def _base_plan(model: nn.Module) -> Mapping[str, Any] | None:
    config = getattr(model, "config", None)
    plan = getattr(config, "base_model_tp_plan", None)
    if not isinstance(plan, Mapping):
        return None
    return plan


def split_faults(model: nn.Module, size: int) -> list[str]:
    """Return the reasons why the layers of a model cannot be sharded over `size` processes."""
    if callable(getattr(model, "parallelize", None)):
        return []
    kind = type(model).__name__
    plan = tensor_parallel_plan(model)
    if not plan:
        remedy = (
            "Give it a tp_plan, such as {'layers.*.up': 'colwise'}, or a method parallelize(mesh)"
        )
        return [f"{kind} has no plan for tensor parallelism. {remedy}"]

    # Names of no module, and styles that are not known, of those that are used.
    lost: list[str] = []
    unknown: dict[str, list[str]] = {}
    for pattern, style in plan.items():
        if not _matching(model, pattern):
            lost.append(pattern)
        elif isinstance(style, str) and style not in STYLES:
            unknown.setdefault(style, []).append(pattern)
    faults: list[str] = []
    for style in sorted(unknown):
        near = did_you_mean(style, list(STYLES))
        faults.append(
            f"the plan of {kind} has the style {style!r} ({', '.join(unknown[style])}), which is "
            f"not supported.{near} Choose from: {', '.join(STYLES)}"
        )

    # Plans of transformers also name what only some models have.
    some_may_be_lost = _base_plan(model) is not None and len(lost) < len(plan)
    if lost and not some_may_be_lost:
        faults.append(
            f"the plan of {kind} has {', '.join(map(repr, lost))}, but the model has no module of "
            "that name"
        )
    return faults or [*_indivisible(model, size), *_unfit(model, size)]


def split(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the layers of a model in place; `split_faults` must be empty.

    Args:
        model: the model; all processes of the group have the same weights.
        mesh: the processes that share each layer; of one dimension.
    """
    agree_on_generators(mesh)
    own: Any = getattr(model, "parallelize", None)
    if callable(own):
        own(mesh)
    else:
        from torch.distributed.tensor.parallel import parallelize_module

        ties = _ties(model)
        torch_styles = {name: style.make() for name, style in _styles(model).items()}
        parallelize_module(model, mesh, torch_styles)
        _tie(model, ties)
    _reduce_partial_gradients(model)


def agree_on_generators(mesh: DeviceMesh) -> None:
    """Give all processes of a group the random states of the first.

    So they draw the same numbers.
    """
    group = mesh.get_group()
    states: list[Any] = [capture_host_rng(), None]
    on_gpu = mesh.device_type == "cuda"
    if on_gpu:
        states[1] = torch.cuda.get_rng_state()
    dist.broadcast_object_list(states, src=dist.get_global_rank(group, 0), group=group)
    restore_host_rng(states[0])
    if on_gpu:
        torch.cuda.set_rng_state(states[1])


def step_context(model: nn.Module) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return the context of an optimizer's step, for models with sharded and whole parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    are_sharded = {hasattr(parameter, "full_tensor") for parameter in trained}
    if are_sharded != {True, False}:
        return contextlib.nullcontext
    from torch.distributed.tensor.experimental import implicit_replication

    return implicit_replication


def sum_before_accumulation(model: Any) -> None:
    """Let the norms of split heads sum each gradient over their processes before it is accumulated.

    `transformers` sums the accumulated gradients, and so the sums of earlier micro-batches again.

    Args:
        model: split by `from_pretrained(distributed_config=...)`.
    """
    group = model._mesh_manager.get_mesh("tp").get_group()
    for pattern, style in model.tp_plan.items():
        if style != "replicated_with_grad_allreduce":
            continue
        for name in _matching(model, pattern):
            module = model.get_submodule(name)
            # Theirs is an attribute of the instance; in a later training ours is there already.
            if vars(module).pop("forward", None) is not None:
                module.register_forward_pre_hook(functools.partial(_hook_parameters, {}, group))


def _hook_parameters(hooked: dict[str, Any], group: Any, module: nn.Module, _: Any) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        # That of `fully_shard` is another one in each forward pass.
        is_hooked = hooked.get(name) is parameter
        if parameter.requires_grad and torch.is_grad_enabled() and not is_hooked:
            parameter.register_hook(functools.partial(_summed, group))
            hooked[name] = parameter


def _summed(group: Any, gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.clone()
    torch.distributed.all_reduce(gradient, group=group)
    return gradient


def _matching(model: nn.Module, pattern: str) -> list[str]:
    """Return names of the modules that match a pattern; each `*` is one part of a name."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name, _ in model.named_modules() if expression.fullmatch(name)]


def _styles(model: nn.Module) -> dict[str, Style]:
    """Return the style of each module of the plan by name.

    Modules with the same weight are sharded alike.
    """
    styles: dict[str, Style] = {}
    for pattern, style in tensor_parallel_plan(model).items():
        for name in _matching(model, pattern):
            styles[name] = as_style(style)

    for parameters in _ties(model):
        modules = [name.rpartition(".")[0] for name in parameters]
        planned = [name for name in modules if name in styles]
        unplanned = [name for name in modules if name not in styles]
        if planned:
            _share_style(model, styles, planned, unplanned)
    return styles


def _share_style(
    model: nn.Module, styles: dict[str, Style], planned: list[str], unplanned: list[str]
) -> None:
    """Give modules the style of those that they are tied to.

    If a module has no such style, none of them is sharded.
    """
    style = styles[planned[0]]
    for name in unplanned:
        partner = style.of_tied(model.get_submodule(name))
        if partner is None:
            logger.warning(
                "%s is not split: it shares its weight with %s, which is whole.", planned[0], name
            )
            for planned_name in planned:
                del styles[planned_name]
            return
        styles[name] = partner


def _indivisible(model: nn.Module, size: int) -> list[str]:
    """Return errors for numbers of attention heads that `size` does not divide."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    faults: list[str] = []
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, None)
        if isinstance(count, int) and count % size:
            divisors = [str(divisor) for divisor in range(2, count + 1) if count % divisor == 0]
            faults.append(
                f"tp_size={size} does not divide {name}={count} of {type(model).__name__}. Choose "
                f"one of: {', '.join(divisors) or 'none'}"
            )
    return faults


def _unfit(model: nn.Module, size: int) -> list[str]:
    """Return errors for layers that their style does not fit."""
    faults: list[str] = []
    for name, style in _styles(model).items():
        fault = style.fault(model.get_submodule(name), size)
        if fault is not None:
            faults.append(f"the plan of {type(model).__name__}: {name}: {fault}")
    return faults


def _ties(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names_of: dict[int, list[str]] = {}
    # An override may lack `remove_duplicate`.
    for name, parameter in nn.Module.named_parameters(model, remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    return [names for names in names_of.values() if len(names) > 1]


def _tie(model: nn.Module, ties: list[list[str]]) -> None:
    for first, *others in ties:
        for name in others:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, model.get_parameter(first))


def _reduce_partial_gradients(model: nn.Module) -> None:
    """Add up the gradients of whole parameters that work on a part of a sequence, or of heads."""
    for parameter in model.parameters():
        placements = getattr(parameter, "placements", None)
        if placements is not None and parameter.requires_grad:
            parameter.register_hook(functools.partial(_as_placed, placements=placements))


def _as_placed(gradient: Any, *, placements: Any) -> Any:
    # A gradient that is a plain tensor stays as it is.
    with contextlib.suppress(AttributeError):
        return gradient.redistribute(placements=placements)
    return gradient
