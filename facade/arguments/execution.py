"""How the model is executed: memory for time, compilation, kernels, embedding noise."""

from dataclasses import dataclass, field
from typing import Any


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
            "value_name": "JSON",
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
            "value_name": "JSON",
            "becomes": "`enable_activation_checkpointing(model, every_n_layers=, offload=, ...)`",
        },
    )
