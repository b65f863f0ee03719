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
    """Return a model's plan: its `tp_plan`, or that of a model of `transformers`.

    The latter consists of `_tp_plan` and of the plan in the configuration.
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
    """Return the plan in the configuration of a model of transformers; None without one."""
    config = getattr(model, "config", None)
    plan = getattr(config, "base_model_tp_plan", None)
    if not isinstance(plan, Mapping):
        return None
    return plan


def split_problems(model: nn.Module, size: int) -> list[str]:
    """Return the reasons why the layers of a model cannot be sharded over `size` processes."""
    # A model that shards itself also checks its layers.
    if callable(getattr(model, "parallelize", None)):
        return []
    model_class = type(model).__name__
    plan = tensor_parallel_plan(model)
    if not plan:
        remedy = (
            "Give it a tp_plan, such as {'layers.*.up': 'colwise'}, or a method parallelize(mesh)"
        )
        return [f"{model_class} has no plan for tensor parallelism. {remedy}"]

    # Patterns that match no module, and the patterns of each unknown style that is used.
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

    # Plans of transformers also name modules that only some models of a family have.
    is_plan_of_family = _plan_of_config(model) is not None
    some_may_be_unmatched = is_plan_of_family and len(unmatched_patterns) < len(plan)
    if unmatched_patterns and not some_may_be_unmatched:
        patterns = ", ".join(repr(pattern) for pattern in unmatched_patterns)
        problems.append(
            f"the plan of {model_class} has {patterns}, but the model has no module of that name"
        )

    # The sizes of layers are only checked under a valid plan.
    if problems:
        return problems
    return [*_indivisible_heads(model, size), *_unfit_layers(model, size)]


def split(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the layers of a model in place; `split_problems` must be empty.

    Args:
        model: the model; all processes of the group have the same weights.
        mesh: the processes that share each layer; of one dimension.
    """
    agree_on_generators(mesh)
    parallelize: object = getattr(model, "parallelize", None)
    if callable(parallelize):
        parallelize(mesh)
    else:
        from torch.distributed.tensor.parallel import parallelize_module

        # Sharding replaces each parameter, so tied ones are tied again afterwards.
        names_of_tied_parameters = tied_names(model)
        styles = _styles(model)
        torch_styles = {name: style.make_torch_style() for name, style in styles.items()}
        parallelize_module(model, mesh, torch_styles)
        tie(model, names_of_tied_parameters)
    _reduce_partial_gradients(model)


def agree_on_generators(mesh: DeviceMesh) -> None:
    """Give all ranks of a group the random states of the first, so that they draw equal numbers."""
    group = mesh.get_group()

    # The states of the generators on the host, and of the one of the GPU.
    states: list[Any] = [capture_host_rng(), None]
    is_on_gpu = mesh.device_type == "cuda"
    if is_on_gpu:
        states[1] = torch.cuda.get_rng_state()

    # The first process of the group sends its states, the others receive them in the list.
    first_rank = dist.get_global_rank(group, 0)
    dist.broadcast_object_list(states, src=first_rank, group=group)
    restore_host_rng(states[0])
    if is_on_gpu:
        torch.cuda.set_rng_state(states[1])


def step_context(model: nn.Module) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """Return the context of an optimizer's step, for models with sharded and whole parameters."""
    # Foreach and fused kernels update many parameters at once. If both kinds are mixed, torch has
    # to treat whole parameters as replicated.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    are_sharded = [hasattr(parameter, "full_tensor") for parameter in trained]
    if all(are_sharded) or not any(are_sharded):
        return contextlib.nullcontext
    from torch.distributed.tensor.experimental import implicit_replication

    return implicit_replication


def sum_before_accumulation(model: Any) -> None:
    """Let norms of sharded heads sum each gradient over their ranks before it is accumulated.

    `transformers` sums accumulated gradients, so it adds up those of earlier micro-batches again.

    Args:
        model: split by `from_pretrained(distributed_config=...)`.
    """
    # transformers keeps the mesh in a private attribute of the models that it splits.
    group = model._mesh_manager.get_mesh("tp").get_group()
    for pattern, style in model.tp_plan.items():
        if style != "replicated_with_grad_allreduce":
            continue
        for name in _matching_modules(model, pattern):
            module = model.get_submodule(name)

            # transformers has set a `forward` on the instance, which sums. If it is missing, an
            # earlier training has replaced it by this hook.
            if vars(module).pop("forward", None) is not None:
                module.register_forward_pre_hook(_GradientSum(group))


class _GradientSum:
    """Forward pre-hook of a module, which sums the gradients of its parameters over a group.

    Args:
        group: the processes to sum over.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        # The parameters that have the hook already, by name.
        self.hooked: dict[str, nn.Parameter] = {}

    def __call__(self, module: nn.Module, inputs: object) -> None:
        """Add a hook to each parameter that has none yet."""
        for name, parameter in module.named_parameters(recurse=False):
            # Under `fully_shard` a module has another parameter object in each forward pass.
            is_hooked = self.hooked.get(name) is parameter
            if parameter.requires_grad and torch.is_grad_enabled() and not is_hooked:
                parameter.register_hook(self._summed)
                self.hooked[name] = parameter

    def _summed(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()  # autograd may share it with other nodes
        dist.all_reduce(gradient, group=self.group)
        return gradient


def _matching_modules(model: nn.Module, pattern: str) -> list[str]:
    """Return names of the modules that match a pattern; each `*` is one part of a name."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name, _ in model.named_modules() if expression.fullmatch(name)]


def _styles(model: nn.Module) -> dict[str, Style]:
    """Return the style of each module of the plan by name.

    Modules with the same weight are sharded alike.
    """
    styles: dict[str, Style] = {}
    for pattern, style in tensor_parallel_plan(model).items():
        for name in _matching_modules(model, pattern):
            styles[name] = as_style(style)

    # Extend the plan to modules that it leaves out, if they share a weight with one that it names.
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
    """Give modules without a style the one of modules whose weight they share.

    If that is not possible for one of them, none is sharded.
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


def _indivisible_heads(model: nn.Module, size: int) -> list[str]:
    """Return errors for numbers of attention heads that `size` does not divide."""
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


def _unfit_layers(model: nn.Module, size: int) -> list[str]:
    """Return errors for layers that their style does not fit."""
    problems: list[str] = []
    for name, style in _styles(model).items():
        problem = style.problem_with(model.get_submodule(name), size)
        if problem is not None:
            problems.append(f"the plan of {type(model).__name__}: {name}: {problem}")
    return problems


def _reduce_partial_gradients(model: nn.Module) -> None:
    """Sum the gradients of unsharded parameters over ranks that each see a part of the data.

    The parts are shards of a sequence, or some of the heads.
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

    # A gradient that is a plain tensor stays as it is.
    if not isinstance(gradient, DTensor):
        return gradient
    return gradient.redistribute(placements=placements)
