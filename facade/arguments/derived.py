"""Set the training arguments that follow from others."""

import copy
import logging
from typing import Any

from ...lightning_modules.common.local_paths import local_folder
from ...lightning_modules.common.metric_directions import known_direction
from .enums import IntervalStrategy
from .fields import ArgumentFields
from .hardware import has_mps

logger = logging.getLogger(__name__)


def derive(args: ArgumentFields) -> None:
    """As `transformers.TrainingArguments.__post_init__` does after it has converted the values.

    Args:
        args: After `read_fields`; changed in place.

    Raises:
        ValueError: `output_dir` is an address of no known kind.
        ImportError: The package for the address in `output_dir` is not installed.
    """
    if args.output_dir is None:
        args.output_dir = "trainer_output"
        logger.info("output_dir is not set: results go to the folder 'trainer_output'.")
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
    """Return the metric that a plateau schedule and the best model depend on: the loss unless
    another one is set.
    """
    if args.metric_for_best_model is not None:
        return args.metric_for_best_model
    return f"{args.eval_aggregate}_loss" if args.eval_aggregate else "loss"


def _derive_best_metric(args: Any) -> None:
    """Choose the metric of the best model where one is needed, and its direction."""
    if args.load_best_model_at_end or args.lr_scheduler_type.waits_for_metric:
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


def _derive_execution(args: Any) -> None:
    """Complete the settings of compilation, activation checkpointing, reading and accumulation."""
    if args.torch_compile_mode is not None or args.torch_compile_backend is not None:
        args.torch_compile = True
    if args.torch_compile and args.torch_compile_backend is None:
        args.torch_compile_backend = "inductor"

    # Activation checkpointing has two names, of which the newer one counts.
    if (
        args.gradient_checkpointing
        and args.activation_checkpointing is not None
        and not args.activation_checkpointing
    ):
        logger.warning(
            "activation_checkpointing=False overrules its older name: gradient_checkpointing is "
            "turned off."
        )
    for newer, older in CHECKPOINTING_NAMES.items():
        if getattr(args, newer) is None:
            setattr(args, newer, getattr(args, older))
        # None for the older name is as good as False
        elif getattr(args, newer) or getattr(args, older):
            setattr(args, older, getattr(args, newer))
    if args.activation_checkpointing is None:
        args.activation_checkpointing = False
    args._checkpointing = (
        args.activation_checkpointing,
        copy.copy(args.activation_checkpointing_kwargs),
    )

    # Reading data: on a machine with an Apple GPU workers are forked.
    if args.use_cpu:
        args.dataloader_pin_memory = False
    if (
        args.dataloader_num_workers > 1
        and args.dataloader_multiprocessing_context is None
        and has_mps()
    ):
        args.dataloader_multiprocessing_context = "fork"

    # A rule refuses two different numbers.
    accumulation = args.accelerator_config.gradient_accumulation_kwargs or {}
    if args.gradient_accumulation_steps == 1:
        args.gradient_accumulation_steps = accumulation.get("num_steps") or 1


CHECKPOINTING_NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
"""The newer names of the settings of activation checkpointing, and the older ones."""


def checkpointing(args: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether activations are recomputed in the backward pass, and the settings.

    Args:
        args: Training arguments. If only one of the names was changed since `derive`, that change
            counts.
    """
    before_on, before_settings = getattr(args, "_checkpointing", None) or (False, None)
    on = _changed(args, "activation_checkpointing", before_on)
    settings = _changed(args, "activation_checkpointing_kwargs", before_settings)
    return bool(on), dict(settings or {})


def _changed(args: Any, newer: str, before: Any) -> Any:
    """Return the value of the newer name, or of the older one if the newer one is still what it
    was.
    """
    value = getattr(args, newer, None)
    if (value or None) != (before or None):
        return value
    return getattr(args, CHECKPOINTING_NAMES[newer], None)
