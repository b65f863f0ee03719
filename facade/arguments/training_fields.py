"""Fields of the training arguments about steps, optimizer, precision and execution."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .argument import SettingsDict, anything, argument, integer, number
from .enums import OptimizerNames, SchedulerType
from .readers import (
    read_cache_steps,
    read_layer_settings,
    read_optimizer,
    read_parameter_rules,
    read_schedule_settings,
)


@dataclass(init=False, repr=False, eq=False)
class RunArguments:
    """The fields of `transformers.TrainingArguments` that say how long to train and where to
    write.
    """

    output_dir: str | None = argument(
        None, "Folder or address; unset is 'trainer_output'.", maps_to="`default_root_dir`"
    )
    per_device_train_batch_size: int = argument(
        8,
        "Samples in a training batch of one process, before accumulation.",
        maps_to="`build_loader(batch_size=)`",
        read=integer(low=1),
    )
    num_train_epochs: float = argument(
        3.0, "Passes over the training data, or a fraction.", maps_to="`Trainer(max_epochs=)`"
    )
    max_steps: int = argument(
        -1,
        "Optimizer steps; above 0, num_train_epochs is not read.",
        maps_to="`Trainer.should_stop`",
    )


@dataclass(init=False, repr=False, eq=False)
class OptimizationArguments:
    """The fields of `transformers.TrainingArguments` that say how weights are updated."""

    learning_rate: float = argument(
        5e-5,
        "Highest learning rate, after warm-up.",
        maps_to="`configure_optimizers()`: `lr`",
        read=number(low=0, below=math.inf),
    )
    lr_scheduler_type: SchedulerType | str = argument(
        "linear",
        "Shape of the learning rate over time, a value of SchedulerType.",
        maps_to="`get_scheduler(name)`",
    )
    lr_scheduler_kwargs: SettingsDict | str | None = argument(
        None,
        "Further settings of the schedule, such as {'num_cycles': 2}; as a dict or as JSON.",
        maps_to="`get_scheduler(scheduler_specific_kwargs=)`",
        metavar="JSON",
        read=read_schedule_settings,
    )
    warmup_steps: float = argument(
        0,
        "Steps of warm-up; below 1, a share.",
        maps_to="`get_scheduler(num_warmup_steps=)`",
        read=number(low=0, remedy=" Pass a number of steps, or a share of all steps below 1."),
    )
    default_optim: ClassVar[str] = "adamw_torch_fused"
    optim: OptimizerNames | str = argument(
        default_optim,
        "The optimizer: of OptimizerNames, or the path of a class.",
        maps_to="`configure_optimizers()`: its class",
        read=read_optimizer,
    )
    optim_args: str | None = argument(
        None,
        "Further settings of the optimizer: 'key=value,key=value'.",
        maps_to="`configure_optimizers()`: further arguments",
    )
    weight_decay: float = argument(
        0.0,
        "Weight decay, except of biases and norms.",
        maps_to="the first parameter group",
        read=number(low=0, below=math.inf),
    )
    adam_beta1: float = argument(
        0.9,
        "Decay rate of Adam's mean of gradients.",
        maps_to="first of Adam's `betas`",
        read=number(low=0, below=1),
    )
    adam_beta2: float = argument(
        0.999,
        "Decay rate of Adam's mean of squared gradients.",
        maps_to="second of Adam's `betas`",
        read=number(low=0, below=1),
    )
    adam_epsilon: float = argument(
        1e-8,
        "Added to Adam's denominator against division by zero.",
        maps_to="`eps` of Adam",
        read=number(low=0),
    )
    optim_target_modules: None | str | list[str] = argument(  # noqa: RUF036 - TRL reads the type before the last
        None,
        "Modules that optimizers such as GaLore and APOLLO work on.",
        maps_to="their parameter groups",
        read=anything,
    )
    gradient_accumulation_steps: int = argument(
        1,
        "Batches whose gradients are summed into one optimizer step.",
        maps_to="micro-batches in a Lightning batch",
        read=integer(low=1, remedy=" 1 means no accumulation."),
    )
    average_tokens_across_devices: bool = argument(
        True,
        "Divide the loss by the number of labels in all processes, not in this one.",
        maps_to="`num_items_in_batch`, summed",
    )
    max_grad_norm: float = argument(
        1.0, "Largest norm of gradients; 0 turns it off.", maps_to="clipping in `training_step`"
    )
    label_smoothing_factor: float = argument(
        0.0,
        "Share of each target spread evenly over all classes, from 0 (none) to 1.",
        maps_to="`LabelSmoother(epsilon=)`",
        read=number(low=0, high=1),
    )


@dataclass(init=False, repr=False, eq=False)
class PrecisionArguments:
    """The fields of `transformers.TrainingArguments` that choose number formats."""

    bf16: bool = argument(
        False, "Compute in bfloat16 where safe.", maps_to="`Trainer(precision='bf16-mixed')`"
    )
    fp16: bool = argument(
        False,
        "Compute in float16 where safe, with loss scaling.",
        maps_to="`Trainer(precision='16-mixed')`",
    )
    bf16_full_eval: bool = argument(
        False, "Evaluate with weights in bfloat16.", maps_to="`model.to(torch.bfloat16)`"
    )
    fp16_full_eval: bool = argument(
        False, "Evaluate with weights in float16.", maps_to="`model.to(torch.float16)`"
    )
    tf32: bool | None = argument(
        None,
        "Use TF32 in float32 products; unset, `torch_compile` turns it on where the GPU has it.",
        maps_to="`torch.set_float32_matmul_precision()`",
    )


@dataclass(init=False, repr=False, eq=False)
class ExecutionArguments:
    """The fields of `transformers.TrainingArguments` that trade memory for time or change how a
    model runs.
    """

    gradient_checkpointing: bool = argument(
        False,
        "Recompute activations in the backward pass to save memory.",
        maps_to="`enable_activation_checkpointing`",
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = argument(
        None,
        "Settings of torch.utils.checkpoint, passed to gradient_checkpointing_enable() of a model "
        "that has this method.",
        maps_to="`enable_activation_checkpointing(model, ...)`",
        metavar="JSON",
        read=read_layer_settings,
    )
    torch_compile: bool = argument(
        False, "Compile the model with torch.compile.", maps_to="`model.compile()`"
    )
    torch_compile_backend: str | None = argument(
        None,
        "Backend of torch.compile; setting it turns torch_compile on.",
        maps_to="`model.compile(backend=)`",
    )
    torch_compile_mode: str | None = argument(
        None, "Mode of torch.compile; turns it on.", maps_to="`model.compile(mode=)`"
    )
    use_liger_kernel: bool = argument(
        False,
        "Replace parts of the model by Liger kernels.",
        maps_to="layers of the model are exchanged before training",
    )
    liger_kernel_config: dict[str, bool] | None = argument(
        None,
        "Which Liger kernels to use, by name; unset takes Liger's own choice.",
        maps_to="which layers are exchanged",
    )
    use_cache: bool = argument(
        False,
        "Let the model keep its key-value cache in training.",
        maps_to="`model.config.use_cache`",
    )
    neftune_noise_alpha: float | None = argument(
        None,
        "Strength of NEFTune noise on embeddings, often 5 to 15.",
        maps_to="`neftune_hook(noise_alpha=)`",
    )
    torch_empty_cache_steps: int | None = argument(
        None,
        "Empty the accelerator's cache every n steps; unset never.",
        maps_to="`torch.cuda.empty_cache()`",
        read=read_cache_steps,
    )
    auto_find_batch_size: bool = argument(
        False,
        "Start again with smaller batches when memory runs out; keeps a copy of the weights on the "
        "host.",
        maps_to="a new attempt with nine tenths of the batch (`Trainer.keep_effective_batch_size`: "
        "half of it, and twice the accumulation)",
    )


@dataclass(init=False, repr=False, eq=False)
class LaterExecutionArguments:
    """The fields about activations that transformers added after 5.3.0, as newer names of
    `gradient_checkpointing*`.
    """

    activation_checkpointing: bool | None = argument(
        None,
        "The newer name of gradient_checkpointing, which it overrides. Works for any model.",
        maps_to="`enable_activation_checkpointing(model)`",
        nargs="?",
        const=True,
    )
    activation_checkpointing_kwargs: dict[str, Any] | str | None = argument(
        None,
        "Settings of torch.utils.checkpoint, and two more: 'every_n_layers' takes only every n-th "
        "layer, 'offload' keeps in main memory what the others still have to keep.",
        maps_to="`enable_activation_checkpointing(model, every_n_layers=, offload=, ...)`",
        metavar="JSON",
        read=read_layer_settings,
    )


@dataclass(init=False, repr=False, eq=False)
class RuleArguments:
    """The fields about the optimizer that `transformers.TrainingArguments` does not have."""

    parameter_rules: dict[str, Any] | str | None = argument(
        None,
        "Learning rate, weight decay and freezing for parameters whose names match a pattern.",
        maps_to="parameter groups",
        metavar="JSON",
        read=read_parameter_rules,
    )
