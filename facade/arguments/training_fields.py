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
        None, "Output folder or URL; by default 'trainer_output'.", maps_to="`default_root_dir`"
    )
    per_device_train_batch_size: int = argument(
        8,
        "Training batch size per process, before accumulation.",
        maps_to="`build_loader(batch_size=)`",
        read=integer(low=1),
    )
    num_train_epochs: float = argument(
        3.0, "Number of epochs, which may be a fraction.", maps_to="`Trainer(max_epochs=)`"
    )
    max_steps: int = argument(
        -1,
        "Number of optimizer steps; above 0 it overrides num_train_epochs.",
        maps_to="`Trainer.should_stop`",
    )


@dataclass(init=False, repr=False, eq=False)
class OptimizationArguments:
    """The fields of `transformers.TrainingArguments` that say how weights are updated."""

    learning_rate: float = argument(
        5e-5,
        "Peak learning rate, after warmup.",
        maps_to="`configure_optimizers()`: `lr`",
        read=number(low=0, below=math.inf),
    )
    lr_scheduler_type: SchedulerType | str = argument(
        "linear",
        "Learning rate schedule, a value of SchedulerType.",
        maps_to="`get_scheduler(name)`",
    )
    lr_scheduler_kwargs: SettingsDict | str | None = argument(
        None,
        "Settings of the schedule, such as {'num_cycles': 2}, as a dict or JSON.",
        maps_to="`get_scheduler(scheduler_specific_kwargs=)`",
        metavar="JSON",
        read=read_schedule_settings,
    )
    warmup_steps: float = argument(
        0,
        "Warmup steps; below 1, a fraction of all steps.",
        maps_to="`get_scheduler(num_warmup_steps=)`",
        read=number(low=0, remedy=" Pass a number of steps, or a share of all steps below 1."),
    )
    default_optim: ClassVar[str] = "adamw_torch_fused"
    optim: OptimizerNames | str = argument(
        default_optim,
        "The optimizer: a value of OptimizerNames, or the path of a class.",
        maps_to="`configure_optimizers()`: its class",
        read=read_optimizer,
    )
    optim_args: str | None = argument(
        None,
        "Settings of the optimizer: 'key=value,key=value'.",
        maps_to="`configure_optimizers()`: further arguments",
    )
    weight_decay: float = argument(
        0.0,
        "Weight decay, except for biases and norms.",
        maps_to="the first parameter group",
        read=number(low=0, below=math.inf),
    )
    adam_beta1: float = argument(
        0.9,
        "Adam's beta1, the decay rate of the first moment.",
        maps_to="first of Adam's `betas`",
        read=number(low=0, below=1),
    )
    adam_beta2: float = argument(
        0.999,
        "Adam's beta2, the decay rate of the second moment.",
        maps_to="second of Adam's `betas`",
        read=number(low=0, below=1),
    )
    adam_epsilon: float = argument(
        1e-8,
        "Adam's epsilon, added to the denominator.",
        maps_to="`eps` of Adam",
        read=number(low=0),
    )
    optim_target_modules: None | str | list[str] = argument(  # noqa: RUF036 - TRL reads the type before the last
        None,
        "Modules to which optimizers such as GaLore and APOLLO are applied.",
        maps_to="their parameter groups",
        read=anything,
    )
    gradient_accumulation_steps: int = argument(
        1,
        "Number of batches per optimizer step.",
        maps_to="micro-batches in a Lightning batch",
        read=integer(low=1, remedy=" 1 means no accumulation."),
    )
    average_tokens_across_devices: bool = argument(
        True,
        "Divide the loss by the number of labels over all processes.",
        maps_to="`num_items_in_batch`, summed",
    )
    max_grad_norm: float = argument(
        1.0, "Maximum gradient norm; 0 disables clipping.", maps_to="clipping in `training_step`"
    )
    label_smoothing_factor: float = argument(
        0.0,
        "Label smoothing, from 0 (none) to 1.",
        maps_to="`LabelSmoother(epsilon=)`",
        read=number(low=0, high=1),
    )


@dataclass(init=False, repr=False, eq=False)
class PrecisionArguments:
    """The fields of `transformers.TrainingArguments` that choose number formats."""

    bf16: bool = argument(
        False, "Use bf16 mixed precision.", maps_to="`Trainer(precision='bf16-mixed')`"
    )
    fp16: bool = argument(
        False,
        "Use fp16 mixed precision with loss scaling.",
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
        "Use TF32 in float32 matrix products; by default with `torch_compile` if supported.",
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
        "Backend of torch.compile; enables torch_compile.",
        maps_to="`model.compile(backend=)`",
    )
    torch_compile_mode: str | None = argument(
        None, "Mode of torch.compile; enables it.", maps_to="`model.compile(mode=)`"
    )
    use_liger_kernel: bool = argument(
        False,
        "Replace layers of the model by Liger kernels.",
        maps_to="layers of the model are exchanged before training",
    )
    liger_kernel_config: dict[str, bool] | None = argument(
        None,
        "Which Liger kernels to use, by name; by default Liger decides.",
        maps_to="which layers are exchanged",
    )
    use_cache: bool = argument(
        False,
        "Let the model use its key-value cache in training.",
        maps_to="`model.config.use_cache`",
    )
    neftune_noise_alpha: float | None = argument(
        None,
        "Strength of NEFTune noise on embeddings, often 5 to 15.",
        maps_to="`neftune_hook(noise_alpha=)`",
    )
    torch_empty_cache_steps: int | None = argument(
        None,
        "Empty the accelerator's cache every n steps; by default never.",
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
        "Newer name of gradient_checkpointing, which it overrides. Works for any model.",
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
