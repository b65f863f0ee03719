"""The optimizer, its learning rate, and how gradients are made ready for it."""

from dataclasses import dataclass, field
from typing import ClassVar

from .enums import OptimizerNames, SchedulerType


@dataclass(init=False, repr=False, eq=False)
class OptimizationArguments:
    """The fields of `transformers.TrainingArguments` that say how weights are updated."""

    learning_rate: float = field(
        default=5e-5,
        metadata={
            "help": "Highest learning rate: the one reached after warm-up, before any decay.",
            "becomes": "`configure_optimizers()`: `lr` of the optimizer",
        },
    )
    lr_scheduler_type: SchedulerType | str = field(
        default="linear",
        metadata={
            "help": "Shape of the learning rate over time, a value of SchedulerType.",
            "becomes": "`configure_optimizers()`: the schedule, made by `get_scheduler`",
        },
    )
    lr_scheduler_kwargs: dict | str | None = field(
        default=None,
        metadata={
            "help": "Further settings of the schedule, such as {'num_cycles': 2}; as a dict or as JSON.",
            "value_name": "JSON",
            "becomes": "`get_scheduler(scheduler_specific_kwargs=)`",
        },
    )
    warmup_steps: float = field(
        default=0,
        metadata={
            "help": "Optimizer steps during which the learning rate grows from 0; below 1, a share of all steps.",
            "becomes": "`get_scheduler(num_warmup_steps=)`",
        },
    )
    default_optim: ClassVar[str] = "adamw_torch_fused"
    optim: OptimizerNames | str = field(
        default=default_optim,
        metadata={
            "help": "The optimizer, a value of OptimizerNames.",
            "becomes": "`configure_optimizers()`: the optimizer",
        },
    )
    optim_args: str | None = field(
        default=None,
        metadata={
            "help": "Settings for optimizers that have some of their own: 'key=value,key=value'.",
            "becomes": "`configure_optimizers()`: further arguments of the optimizer",
        },
    )
    weight_decay: float = field(
        default=0.0,
        metadata={
            "help": "Strength of weight decay; biases and normalisation weights are left out.",
            "becomes": "`configure_optimizers()`: `weight_decay` of the first of two parameter groups",
        },
    )
    adam_beta1: float = field(
        default=0.9,
        metadata={
            "help": "How much of Adam's running mean of the gradient is kept each step.",
            "becomes": "`configure_optimizers()`: first of the `betas` of Adam and its kin",
        },
    )
    adam_beta2: float = field(
        default=0.999,
        metadata={
            "help": "How much of Adam's running mean of the squared gradient is kept each step.",
            "becomes": "`configure_optimizers()`: second of the `betas` of Adam and its kin",
        },
    )
    adam_epsilon: float = field(
        default=1e-8,
        metadata={
            "help": "Added to Adam's denominator so that it never divides by zero.",
            "becomes": "`configure_optimizers()`: `eps` of Adam and its kin",
        },
    )
    optim_target_modules: str | list[str] | None = field(
        default=None,
        metadata={
            "help": "Modules that low-rank optimizers such as GaLore and APOLLO work on.",
            "becomes": "`configure_optimizers()`: parameter groups of GaLore and APOLLO",
        },
    )
    gradient_accumulation_steps: int = field(
        default=1,
        metadata={
            "help": "Batches whose gradients are summed up into one optimizer step; multiplies the batch size.",
            "becomes": "micro-batches in one Lightning batch, read by `WindowLoader`",
        },
    )
    average_tokens_across_devices: bool = field(
        default=True,
        metadata={
            "help": "Divide the loss by the number of labels in all processes instead of in this one.",
            "becomes": "`num_items_in_batch` of `compute_loss`, summed over processes",
        },
    )
    max_grad_norm: float = field(
        default=1.0,
        metadata={
            "help": "Gradients with a larger total norm are scaled down to it; 0 turns this off.",
            "becomes": "clipping in `training_step`, before the optimizer step",
        },
    )
    label_smoothing_factor: float = field(
        default=0.0,
        metadata={
            "help": "Share of each target spread evenly over all classes, from 0 (none) to 1.",
            "becomes": "`LabelSmoother(epsilon=)`",
        },
    )
