"""Random seeds, and the machine that the run takes place on."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(init=False, repr=False, eq=False)
class SeedArguments:
    """The fields of `transformers.TrainingArguments` that make runs repeatable."""

    full_determinism: bool = field(
        default=False,
        metadata={
            "help": "Use only operations that always give the same bits; slow, for debugging.",
            "becomes": "`enable_full_determinism(seed)` in place of `set_seed(seed)`",
        },
    )
    seed: int = field(
        default=42,
        metadata={
            "help": "Seed of all random numbers, set when training starts.",
            "becomes": "`set_seed(seed)` when the Trainer is made and when `model_init` is called",
        },
    )
    data_seed: int | None = field(
        default=None,
        metadata={
            "help": "Seed of the order of the data; unset takes the one in seed.",
            "becomes": "`build_loader(seed=)`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class PlatformArguments:
    """The fields of `transformers.TrainingArguments` about devices and how data is dealt out to processes."""

    use_cpu: bool = field(
        default=False,
        metadata={
            "help": "Compute on the CPU although there is an accelerator.",
            "becomes": "`Trainer(accelerator='cpu')`",
        },
    )
    accelerator_config: dict | str | None = field(
        default=None,
        metadata={
            "help": "How batches are dealt out to processes: a dict, or the path of a JSON file.",
            "value_name": "JSON|FILE",
            "becomes": "how samplers and loaders deal out batches",
        },
    )
    parallelism_config: Any | None = field(
        default=None,
        metadata={
            "help": "Sizes of the tensor, context and data parallel groups.",
            "becomes": "`Trainer(strategy=)`: `ModelParallelStrategy`",
        },
    )
