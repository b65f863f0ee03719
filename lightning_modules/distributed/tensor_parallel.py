"""Shard the layers of a model over ranks (tensor parallelism) by the model's plan.

A plan maps names of modules to sharding styles: `{"blocks.*.up": "colwise", "blocks.*.down":
"rowwise"}`. Modules that are not in the plan are replicated on all ranks of the group.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ..common.seeding import capture_host_rng, restore_host_rng
from ..common.suggestions import did_you_mean
from ..models.tied_parameters import tie, tied_names
from .tensor_parallel_styles import STYLES, Style, as_style

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

logger = logging.getLogger(__name__)


def tensor_parallel_plan(model: nn.Module) -> dict[str, Any]:
    """Return a model's tensor-parallel plan.

    It is the attribute `tp_plan`; for a model of `transformers`, `_tp_plan` merged with the plan in
    its configuration.
    """
    plan_of_model: dict[str, Any] = {}
    for name in ("tp_plan", "_tp_plan"):
        plan = getattr(model, name, None)
        if isinstance(plan, Mapping) and plan:
            plan_of_model = dict(plan)
            break

    # The plan in the configuration names modules of the base model, which has no head.
    plan_of_config = _plan_of_config(model) or {}
    prefix = getattr(model, "base_model_prefix", "")
    has_head = bool(prefix) and isinstance(getattr(model, prefix, None), nn.Module)
    if has_head:
        plan_of_config = {f"{prefix}.{name}": style for name, style in plan_of_config.items()}
    return {**plan_of_config, **plan_of_model}


def _plan_of_config(model: nn.Module) -> Mapping[str, object] | None:
    """Return the plan in a transformers configuration; None without one."""
    config = getattr(model, "config", None)
    plan = getattr(config, "base_model_tp_plan", None)
    if not isinstance(plan, Mapping):
        return None
    return plan


def sharding_problems(model: nn.Module, size: int) -> list[str]:
    """Return the reasons why the layers of a model cannot be sharded over `size` ranks."""
    # A model with a method `parallelize` checks its layers itself.
    if callable(getattr(model, "parallelize", None)):
        return []
    model_class = type(model).__name__
    plan = tensor_parallel_plan(model)
    if not plan:
        remedy = (
            "Give it a tp_plan, such as {'layers.*.up': 'colwise'}, or a method parallelize(mesh)"
        )
        return [f"{model_class} has no plan for tensor parallelism. {remedy}"]

    # Collect patterns that match no module, and patterns with an unknown style.
    unmatched_patterns: list[str] = []
    unknown_styles: dict[str, list[str]] = {}
    for pattern, style in plan.items():
        if not _matching_modules(model, pattern):
            unmatched_patterns.append(pattern)
        elif isinstance(style, str) and style not in STYLES:
            unknown_styles.setdefault(style, []).append(pattern)

    problems: list[str] = []
    for style in sorted(unknown_styles):
        patterns = ", ".join(unknown_styles[style])
        suggestion = did_you_mean(style, list(STYLES))
        problems.append(
            f"the plan of {model_class} has the style {style!r} ({patterns}), which is not "
            f"supported.{suggestion} Choose from: {', '.join(STYLES)}"
        )

    # Plans of transformers may name modules that only some models of a family have.
    is_plan_of_family = _plan_of_config(model) is not None
    some_may_be_unmatched = is_plan_of_family and len(unmatched_patterns) < len(plan)
    if unmatched_patterns and not some_may_be_unmatched:
        patterns = ", ".join(repr(pattern) for pattern in unmatched_patterns)
        problems.append(
            f"the plan of {model_class} has {patterns}, but the model has no module of that name"
        )

    # Check the sizes of layers only if the plan is valid.
    if problems:
        return problems
    return [*_head_problems(model, size), *_layer_problems(model, size)]


def split(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the layers of a model in place; `sharding_problems` must be empty.

    Args:
        model: the model, with the same weights on all ranks of the group.
        mesh: one-dimensional mesh of the ranks that share each layer.
    """
    agree_on_generators(mesh)
    parallelize: object = getattr(model, "parallelize", None)
    if callable(parallelize):
        parallelize(mesh)
    else:
        from torch.distributed.tensor.parallel import parallelize_module

        # Sharding replaces each parameter, so tie them again afterwards.
        names_of_tied_parameters = tied_names(model)
        styles = _styles(model)
        torch_styles = {name: style.make_torch_style() for name, style in styles.items()}
        parallelize_module(model, mesh, torch_styles)
        tie(model, names_of_tied_parameters)
    _reduce_partial_gradients(model)


def agree_on_generators(mesh: DeviceMesh) -> None:
    """Copy the RNG states of the first rank to all ranks of a group."""
    group = mesh.get_group()

    # RNG states of the CPU and of the GPU.
    states: list[Any] = [capture_host_rng(), None]
    is_on_gpu = mesh.device_type == "cuda"
    if is_on_gpu:
        states[1] = torch.cuda.get_rng_state()

    # The first rank of the group sends its states; the others receive them in the list.
    first_rank = dist.get_global_rank(group, 0)
    dist.broadcast_object_list(states, src=first_rank, group=group)
    restore_host_rng(states[0])
    if is_on_gpu:
        torch.cuda.set_rng_state(states[1])


def step_context(model: nn.Module) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """Return the context manager for optimizer steps on sharded and unsharded parameters."""
    # Foreach and fused kernels update many parameters together. If some are sharded, torch must
    # treat the others as replicated.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    are_sharded = [hasattr(parameter, "full_tensor") for parameter in trained]
    if all(are_sharded) or not any(are_sharded):
        return contextlib.nullcontext
    from torch.distributed.tensor.experimental import implicit_replication

    return implicit_replication


def sum_before_accumulation(model: Any) -> None:
    """Let norms of sharded heads all-reduce each gradient before it is accumulated.

    `transformers` all-reduces the accumulated gradients, so those of earlier micro-batches are
    summed again.

    Args:
        model: a model loaded by `from_pretrained(distributed_config=...)`.
    """
    # transformers stores the mesh in a private attribute.
    group = model._mesh_manager.get_mesh("tp").get_group()
    for pattern, style in model.tp_plan.items():
        if style != "replicated_with_grad_allreduce":
            continue
        for name in _matching_modules(model, pattern):
            module = model.get_submodule(name)

            # transformers has set a `forward` on the instance that all-reduces. If it is missing,
            # an earlier training has replaced it with this hook.
            if vars(module).pop("forward", None) is not None:
                module.register_forward_pre_hook(_GradientSum(group))


class _GradientSum:
    """Forward pre-hook of a module that all-reduces the gradients of its parameters.

    Args:
        group: the process group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        # Parameters that have the hook already, by name.
        self.hooked: dict[str, nn.Parameter] = {}

    def __call__(self, module: nn.Module, inputs: object) -> None:
        """Add the hook to each parameter that does not have it yet."""
        for name, parameter in module.named_parameters(recurse=False):
            # With `fully_shard`, a module has a new parameter object in each forward pass.
            is_hooked = self.hooked.get(name) is parameter
            if parameter.requires_grad and torch.is_grad_enabled() and not is_hooked:
                parameter.register_hook(self._all_reduce)
                self.hooked[name] = parameter

    def _all_reduce(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()  # autograd may share it with other nodes
        dist.all_reduce(gradient, group=self.group)
        return gradient


def _matching_modules(model: nn.Module, pattern: str) -> list[str]:
    """Return names of modules that match a pattern. Each `*` matches one part of a name."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name, _ in model.named_modules() if expression.fullmatch(name)]


def _styles(model: nn.Module) -> dict[str, Style]:
    """Return the style of each module in the plan by name.

    Modules that share a weight are sharded the same way.
    """
    styles: dict[str, Style] = {}
    for pattern, style in tensor_parallel_plan(model).items():
        for name in _matching_modules(model, pattern):
            styles[name] = as_style(style)

    # Extend the plan to modules that share a weight with a module in the plan.
    for parameter_names in tied_names(model):
        module_names = [name.rpartition(".")[0] for name in parameter_names]
        planned = [name for name in module_names if name in styles]
        unplanned = [name for name in module_names if name not in styles]
        if planned:
            _share_style(model, styles, planned, unplanned)
    return styles


def _share_style(
    model: nn.Module, styles: dict[str, Style], planned: list[str], unplanned: list[str]
) -> None:
    """Add styles for modules that share a weight with planned modules.

    If that is not possible for one module, none of them is sharded.
    """
    style = styles[planned[0]]
    for name in unplanned:
        style_of_partner = style.for_tied_module(model.get_submodule(name))
        if style_of_partner is None:
            logger.warning(
                "%s is not sharded: it shares its weight with %s, which is replicated.",
                planned[0],
                name,
            )
            for planned_name in planned:
                del styles[planned_name]
            return
        styles[name] = style_of_partner


def _head_problems(model: nn.Module, size: int) -> list[str]:
    """Return problems for numbers of attention heads that are not divisible by `size`."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    problems: list[str] = []
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, None)
        if isinstance(count, int) and count % size:
            divisors = [str(divisor) for divisor in range(2, count + 1) if count % divisor == 0]
            problems.append(
                f"tp_size={size} does not divide {name}={count} of {type(model).__name__}. Choose "
                f"one of: {', '.join(divisors) or 'none'}"
            )
    return problems


def _layer_problems(model: nn.Module, size: int) -> list[str]:
    """Return problems for layers that do not support their style."""
    problems: list[str] = []
    for name, style in _styles(model).items():
        problem = style.problem_with(model.get_submodule(name), size)
        if problem is not None:
            problems.append(f"the plan of {type(model).__name__}: {name}: {problem}")
    return problems


def _reduce_partial_gradients(model: nn.Module) -> None:
    """All-reduce partial gradients of replicated parameters.

    A gradient is partial if each rank processes a shard of the sequence or some of the heads.
    """
    for parameter in model.parameters():
        placements = getattr(parameter, "placements", None)
        if placements is not None and parameter.requires_grad:
            parameter.register_hook(
                functools.partial(_redistribute_like_parameter, placements=placements)
            )


def _redistribute_like_parameter(
    gradient: torch.Tensor, *, placements: Sequence[Placement]
) -> torch.Tensor:
    """Return a gradient with the placements of its parameter, which sums partial gradients."""
    from torch.distributed.tensor import DTensor

    # Plain tensors are returned unchanged.
    if not isinstance(gradient, DTensor):
        return gradient
    return gradient.redistribute(placements=placements)
