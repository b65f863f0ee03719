"""Set the training arguments that follow from others."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.local_paths import local_folder
from ...lightning_modules.common.metric_directions import known_direction
from .accelerator import AcceleratorConfig
from .enums import IntervalStrategy, SchedulerType
from .fields import ArgumentFields
from .hardware import has_mps

if TYPE_CHECKING:
    from .. import TrainingArguments

logger = logging.getLogger(__name__)


def derive(args: TrainingArguments) -> None:
    """Do what `transformers.TrainingArguments.__post_init__` does after it has converted values.

    Args:
        args: After `read_fields`; changed in place.

    Raises:
        ValueError: `output_dir` is an address of no known kind.
        ImportError: The package for the address in `output_dir` is not installed.
    """
    if args.output_dir is None:
        args.output_dir = "trainer_output"
        logger.info("output_dir is not set: results are written to the folder 'trainer_output'.")
    args.output_dir = local_folder(args.output_dir)
    if args.disable_tqdm is None:
        args.disable_tqdm = logger.getEffectiveLevel() > logging.WARNING

    # Deprecated arguments.
    if args.warmup_ratio is not None:
        logger.warning(
            "warmup_ratio=%s is deprecated: pass it as warmup_steps, a share of all steps.",
            args.warmup_ratio,
        )
        args.warmup_steps = args.warmup_ratio
    if args.logging_dir is not None:
        logger.warning(
            "logging_dir=%r is deprecated: set the environment variable TENSORBOARD_LOGGING_DIR.",
            args.logging_dir,
        )

    # Evaluations, and whole numbers of steps.
    if args.do_eval is False and args.eval_strategy != IntervalStrategy.NO:
        args.do_eval = True
    if args.eval_strategy == IntervalStrategy.STEPS and not args.eval_steps:
        args.eval_steps = args.logging_steps
    for kind in ("logging", "eval", "save"):
        steps: float | None = getattr(args, f"{kind}_steps")
        is_counted = getattr(args, f"{kind}_strategy") == "steps"
        if is_counted and steps is not None and steps > 1 and float(steps).is_integer():
            setattr(args, f"{kind}_steps", int(steps))

    _derive_best_metric(args)
    _derive_execution(args)


def watched_metric(args: ArgumentFields) -> str:
    """Return the metric that plateau schedules and the best model depend on, usually the loss."""
    if args.metric_for_best_model is not None:
        return args.metric_for_best_model
    if args.eval_aggregate:
        return f"{args.eval_aggregate}_loss"
    return "loss"


def _derive_best_metric(args: ArgumentFields) -> None:
    """Choose the metric of the best model where one is needed, and its direction."""
    is_plateau = args.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU
    if args.load_best_model_at_end or is_plateau:
        args.metric_for_best_model = watched_metric(args)
    if args.greater_is_better is not None or args.metric_for_best_model is None:
        return
    args.greater_is_better = not args.metric_for_best_model.endswith("loss")
    if args.greater_is_better and known_direction(args.metric_for_best_model) == "minimize":
        logger.warning(
            "metric_for_best_model=%r is maximized: greater_is_better is unset, and its name does "
            "not end in loss. Set greater_is_better=False if less is better.",
            args.metric_for_best_model,
        )


def _derive_execution(args: TrainingArguments) -> None:
    """Complete the settings of compilation, activation checkpointing, data and accumulation."""
    # A mode or a backend turns compilation on.
    if args.torch_compile_mode is not None or args.torch_compile_backend is not None:
        args.torch_compile = True
    if args.torch_compile and args.torch_compile_backend is None:
        args.torch_compile_backend = "inductor"

    # Activation checkpointing has two names, of which the newer one counts.
    newer_is_off = args.activation_checkpointing is not None and not args.activation_checkpointing
    if args.gradient_checkpointing and newer_is_off:
        logger.warning(
            "activation_checkpointing=False overrides its older name: gradient_checkpointing is "
            "disabled."
        )
    for newer, older in CHECKPOINTING_NAMES.items():
        if getattr(args, newer) is None:
            setattr(args, newer, getattr(args, older))
        # None for the older name means False.
        elif getattr(args, newer) or getattr(args, older):
            setattr(args, older, getattr(args, newer))
    if args.activation_checkpointing is None:
        args.activation_checkpointing = False
    args.derived_checkpointing = (
        args.activation_checkpointing,
        copy.copy(args.activation_checkpointing_kwargs),
    )

    # Only copies to a device need pinned memory.
    if args.use_cpu:
        args.dataloader_pin_memory = False

    # As in the reference, workers beside an Apple GPU are forked.
    has_no_context = args.dataloader_multiprocessing_context is None
    if args.dataloader_num_workers > 1 and has_no_context and has_mps():
        args.dataloader_multiprocessing_context = "fork"

    # Accumulation may be set in either place; a rule refuses two different numbers.
    config = cast("AcceleratorConfig", args.accelerator_config)  # after `read_fields`
    accumulation = config.gradient_accumulation_kwargs or {}
    if args.gradient_accumulation_steps == 1:
        args.gradient_accumulation_steps = accumulation.get("num_steps") or 1


CHECKPOINTING_NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
"""The newer names of the settings of activation checkpointing, and the older ones."""


def checkpointing(args: object) -> tuple[bool, dict[str, Any]]:
    """Return whether activations are recomputed in the backward pass, and the settings.

    Args:
        args: Training arguments, or an object with the same attributes. If only one of the names
            was changed since `derive`, that change counts.
    """
    derived_values = getattr(args, "derived_checkpointing", None) or (False, None)
    derived_switch, derived_settings = derived_values
    is_on = _newest_value(args, "activation_checkpointing", derived_switch)
    settings = _newest_value(args, "activation_checkpointing_kwargs", derived_settings)
    return bool(is_on), dict(settings or {})


def _newest_value(args: object, newer_name: str, derived_value: object) -> Any:
    """Return the value of the newer name if `derive` did not set it, else of the older one."""
    value = getattr(args, newer_name, None)
    if (value or None) != (derived_value or None):
        return value
    return getattr(args, CHECKPOINTING_NAMES[newer_name], None)
