"""The fields of the training arguments about the steps: how many, which optimizer and numbers, how the model runs."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .enums import OptimizerNames, SchedulerType


@dataclass(init=False, repr=False, eq=False)
class RunArguments:
    """The fields of `transformers.TrainingArguments` that say how long to train and where to write."""

    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder for checkpoints, the final model and logs. Without one: 'trainer_output'.",
            "becomes": "`Trainer(default_root_dir=)`; checkpoints are written below it",
        },
    )
    per_device_train_batch_size: int = field(
        default=8,
        metadata={
            "help": "Samples in one training batch of one process, before accumulation.",
            "becomes": "`build_loader(batch_size=)` of the training data",
        },
    )
    num_train_epochs: float = field(
        default=3.0,
        metadata={
            "help": "Passes over the training data; with a fraction, the last pass stops part of the way.",
            "becomes": "`Trainer(max_epochs=)`, rounded up; a fraction ends through `Trainer.should_stop`",
        },
    )
    max_steps: int = field(
        default=-1,
        metadata={
            "help": "Optimizer steps to train for. Above 0 it decides alone and num_train_epochs is not read.",
            "becomes": "`Trainer.should_stop` after so many batches, and the length of the schedule",
        },
    )


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
            "metavar": "JSON",
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
    optim_target_modules: None | str | list[str] = field(  # noqa: RUF036 - TRL takes the last but one
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


@dataclass(init=False, repr=False, eq=False)
class PrecisionArguments:
    """The fields of `transformers.TrainingArguments` that choose number formats."""

    bf16: bool = field(
        default=False,
        metadata={
            "help": "Compute in bfloat16 where that is safe, with weights in float32 (mixed precision).",
            "becomes": "`Trainer(precision='bf16-mixed')`",
        },
    )
    fp16: bool = field(
        default=False,
        metadata={
            "help": "Compute in float16 where that is safe, with loss scaling; bf16 needs no scaling.",
            "becomes": "`Trainer(precision='16-mixed')`, with a `GradScaler`",
        },
    )
    bf16_full_eval: bool = field(
        default=False,
        metadata={
            "help": "Evaluate with the weights themselves cast to bfloat16.",
            "becomes": "`model.to(torch.bfloat16)` for evaluations outside of a training",
        },
    )
    fp16_full_eval: bool = field(
        default=False,
        metadata={
            "help": "Evaluate with the weights themselves cast to float16.",
            "becomes": "`model.to(torch.float16)` for evaluations outside of a training",
        },
    )
    tf32: bool | None = field(
        default=None,
        metadata={
            "help": "Let float32 products run as TF32 on Ampere and newer GPUs; unset leaves torch as it is.",
            "becomes": "`torch.set_float32_matmul_precision()`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class ExecutionArguments:
    """The fields of `transformers.TrainingArguments` that trade memory for time or change how a model runs."""

    gradient_checkpointing: bool = field(
        default=False,
        metadata={
            "help": "Compute activations again in the backward pass instead of keeping them: less memory, slower.",
            "becomes": "`enable_activation_checkpointing(model)`",
        },
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Settings of torch.utils.checkpoint, handed to the model's gradient_checkpointing_enable() if any.",
            "metavar": "JSON",
            "becomes": "`enable_activation_checkpointing(model, ...)`",
        },
    )
    torch_compile: bool = field(
        default=False, metadata={"help": "Compile the model with torch.compile.", "becomes": "`model.compile()`"}
    )
    torch_compile_backend: str | None = field(
        default=None,
        metadata={
            "help": "Backend of torch.compile; setting it turns torch_compile on.",
            "becomes": "`model.compile(backend=)`",
        },
    )
    torch_compile_mode: str | None = field(
        default=None,
        metadata={
            "help": "Mode of torch.compile; setting it turns torch_compile on.",
            "becomes": "`model.compile(mode=)`",
        },
    )
    use_liger_kernel: bool = field(
        default=False,
        metadata={
            "help": "Replace parts of the model by Liger kernels.",
            "becomes": "layers of the model are exchanged before training",
        },
    )
    liger_kernel_config: dict[str, bool] | None = field(
        default=None,
        metadata={
            "help": "Which Liger kernels to use, by name; unset takes Liger's own choice.",
            "becomes": "which layers are exchanged",
        },
    )
    use_cache: bool = field(
        default=False,
        metadata={
            "help": "Let the model keep its key-value cache while training; rarely of use.",
            "becomes": "`model.config.use_cache`",
        },
    )
    neftune_noise_alpha: float | None = field(
        default=None,
        metadata={
            "help": "Strength of NEFTune noise on the embeddings while training, often 5 to 15; unset is none.",
            "becomes": "`neftune_hook(noise_alpha=)`, a hook on the embeddings while training",
        },
    )
    torch_empty_cache_steps: int | None = field(
        default=None,
        metadata={
            "help": "Give unused accelerator memory back every so many steps; unset never does. Costs time.",
            "becomes": "`torch.cuda.empty_cache()`",
        },
    )
    auto_find_batch_size: bool = field(
        default=False,
        metadata={
            "help": "Start again with smaller batches when memory runs out; keeps a copy of the weights on the host.",
            "becomes": "a new attempt with nine tenths of the batch (`Trainer.keep_effective_batch_size`: half of it, "
            "and twice the accumulation)",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class LaterExecutionArguments:
    """The fields about activations that versions after 5.3.0 added, as newer names of `gradient_checkpointing*`."""

    activation_checkpointing: bool | None = field(
        default=None,
        metadata={
            "help": "The newer name of gradient_checkpointing, which it overrules. Works for models of any kind.",
            "becomes": "`enable_activation_checkpointing(model)`",
            "nargs": "?",
            "const": True,
        },
    )
    activation_checkpointing_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": (
                "Settings of torch.utils.checkpoint, and two more: 'every_n_layers' takes only every n-th layer, "
                "'offload' keeps in main memory what the others still have to keep."
            ),
            "metavar": "JSON",
            "becomes": "`enable_activation_checkpointing(model, every_n_layers=, offload=, ...)`",
        },
    )
