"""How the model is executed: memory for time, compilation, kernels, embedding noise."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(init=False, repr=False, eq=False)
class ExecutionArguments:
    """The fields of `transformers.TrainingArguments` that trade memory for time or change how a model runs."""

    gradient_checkpointing: bool = field(
        default=False,
        metadata={
            "help": "Compute activations again in the backward pass instead of keeping them: less memory, slower."
        },
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Settings handed to the model's gradient_checkpointing_enable()."}
    )
    torch_compile: bool = field(default=False, metadata={"help": "Compile the model with torch.compile."})
    torch_compile_backend: str | None = field(
        default=None, metadata={"help": "Backend of torch.compile; setting it turns torch_compile on."}
    )
    torch_compile_mode: str | None = field(
        default=None, metadata={"help": "Mode of torch.compile; setting it turns torch_compile on."}
    )
    use_liger_kernel: bool = field(default=False, metadata={"help": "Replace parts of the model by Liger kernels."})
    liger_kernel_config: dict[str, bool] | None = field(
        default=None, metadata={"help": "Which Liger kernels to use, by name; unset takes Liger's own choice."}
    )
    use_cache: bool = field(
        default=False, metadata={"help": "Let the model keep its key-value cache while training; rarely of use."}
    )
    neftune_noise_alpha: float | None = field(
        default=None,
        metadata={"help": "Strength of NEFTune noise on the embeddings while training, often 5 to 15; unset is none."},
    )
    torch_empty_cache_steps: int | None = field(
        default=None,
        metadata={"help": "Give unused accelerator memory back every so many steps; unset never does. Costs time."},
    )
    auto_find_batch_size: bool = field(
        default=False, metadata={"help": "Start again with a smaller batch when the accelerator runs out of memory."}
    )
