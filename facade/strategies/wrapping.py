"""Choose the modules that are sharded or checkpointed separately, and check models."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn

from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.distributed.sequence_sharding import model_problems
from ...lightning_modules.distributed.sharding import is_sharded, modules_by_class, modules_by_size
from ...lightning_modules.distributed.tensor_parallel import sharding_problems, tensor_parallel_plan
from ..arguments.fsdp_config import FSDPSettings, shown_fsdp
from ..arguments.rank_groups import effective_parallelism
from ..distributed.launchers import find_launch

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

BY_MODEL = "named by the model"
"""Placeholder for the layers while the model is not known yet."""


def check_processes(args: TrainingArguments) -> None:
    """Check that the number of processes matches `parallelism_config`.

    Raises:
        ValueError: it does not. The message says how to start them.
    """
    groups = effective_parallelism(args)
    if groups is not None and groups.total_size not in (1, args.world_size):
        raise ValueError(
            f"parallelism_config needs {groups.total_size} processes, but there are "
            f"{args.world_size}: start the script with torchrun "
            f"--nproc_per_node={groups.total_size}."
        )


def wrap_option(settings: FSDPSettings, model: nn.Module | None) -> dict[str, Any] | None:
    """Return the choice of modules as a readable value.

    Args:
        settings: see `FSDPSettings.wrap`.
        model: the model, which names its layers if the arguments do not.

    Returns:
        `{"layers": [...]}` with class names, `{"min_num_params": n}`, or None for the whole model.
    """
    if settings.wrap is None:
        return None
    if settings.wrap == "size":
        return {"min_num_params": settings.min_num_params}
    if settings.layers is not None:
        return {"layers": list(settings.layers)}
    if model is None:
        return {"layers": BY_MODEL}
    return {"layers": list(getattr(model, "_no_split_modules", None) or [])}


def layers_of(option: dict[str, Any] | None, model: nn.Module) -> list[str]:
    """Return names of the modules that an option selects, inner ones first."""
    if option is None:
        return []
    if "min_num_params" in option:
        return modules_by_size(model, option["min_num_params"])
    return modules_by_class(model, set(option["layers"]))


def check_sharding(
    args: TrainingArguments, model: nn.Module, *, layers: dict[str, Any] | None
) -> None:
    """Check that a model can be sharded as requested.

    Args:
        args: the training arguments.
        model: the model.
        layers: see `wrap_option`.

    Raises:
        ValueError: the processes were not started by a launcher, or the model has no module of a
            named class.
    """
    check_processes(args)
    if args.world_size == 1 and args.fsdp and find_launch() is None:
        raise ValueError(
            f"{shown_fsdp(args.fsdp)} needs processes: start the script with torchrun "
            "--nproc_per_node=..."
        )
    missing = _missing_layers(layers, model)
    if missing:
        raise ValueError(" ".join(missing))


def split_option(model: nn.Module | None) -> Any:
    """Return the tensor-parallel plan as a readable value, or the model's own method."""
    if model is None:
        return BY_MODEL
    if callable(getattr(model, "parallelize", None)):
        return "parallelize(mesh) of the model"
    return {
        name: style if isinstance(style, str) else type(style).__name__
        for name, style in tensor_parallel_plan(model).items()
    }


def check_split(model: nn.Module, size: int) -> None:
    """Check that the layers of a model can be sharded over `size` ranks.

    Raises:
        ValueError: they cannot. The message says what to do.
    """
    if size == 1 or is_sharded(model):
        return
    problems = sharding_problems(model, size)
    if (getattr(model, "_tp_size", None) or 1) > 1:
        problems = [
            f"from_pretrained(tp_plan=...) has split {type(model).__name__} already. Load it "
            "without tp_plan"
        ]
    if problems:
        raise ValueError(
            f"parallelism_config: tp_size={size}: {'; '.join(problems)}. Use dp_shard_size instead."
        )


def check_sequences(model: nn.Module, argument: str, size: int, head_shards: int = 1) -> None:
    """Check that a model can be trained on sharded sequences, see
    `sequence_sharding.model_problems`.

    Args:
        model: the model to train.
        argument: `cp_size` or `sp_size`.
        size: the value of that argument.
        head_shards: number of ranks over which attention heads are sharded.

    Raises:
        ValueError: it cannot. The message says what to do.
    """
    problems = model_problems(model, head_shards=head_shards)
    if problems:
        raise ValueError(
            f"parallelism_config: {argument}={size}: {'; '.join(problems)}. Use dp_shard_size "
            "instead."
        )


def _missing_layers(option: dict[str, Any] | None, model: nn.Module) -> list[str]:
    """Return an error for each class of layers that the model does not have."""
    names = (option or {}).get("layers")
    # Sharding has replaced the classes of modules.
    if names is None or is_sharded(model):
        return []

    kind = type(model).__name__
    if not names:
        logger.warning(
            "%s does not name its layers, so it is sharded as a whole. Pass "
            "fsdp_config={'transformer_layer_cls_to_wrap': [...]}.",
            kind,
        )
    present = sorted({type(module).__name__ for module in model.modules()})
    return [
        f"fsdp_config: transformer_layer_cls_to_wrap={name!r} is not a module of "
        f"{kind}.{did_you_mean(name, present)} It has: {', '.join(present)}."
        for name in names
        if name not in present
    ]
