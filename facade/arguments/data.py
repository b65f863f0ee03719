"""How samples are read and put into batches."""

from dataclasses import dataclass, field

SAMPLING_STRATEGIES = ["random", "sequential", "group_by_length"]
"""Orders in which training samples can be drawn."""

START_METHODS = ["fork", "spawn", "forkserver"]
"""Ways in which worker processes can be started."""


@dataclass(init=False, repr=False, eq=False)
class DataArguments:
    """The fields of `transformers.TrainingArguments` about loading data."""

    dataloader_drop_last: bool = field(
        default=False,
        metadata={
            "help": "Leave out the last batch of a pass where it would be a smaller one.",
            "becomes": "`build_loader(drop_last=)`",
        },
    )
    dataloader_num_workers: int = field(
        default=0,
        metadata={
            "help": "Processes that read data ahead; with 0 the training process reads it itself.",
            "becomes": "`DataLoader(num_workers=)`",
        },
    )
    dataloader_pin_memory: bool = field(
        default=True,
        metadata={
            "help": "Put batches into page-locked memory, for quicker copies to a GPU.",
            "becomes": "`DataLoader(pin_memory=)` where there is an accelerator",
        },
    )
    dataloader_persistent_workers: bool = field(
        default=False,
        metadata={
            "help": "Keep the reading processes alive from one pass to the next.",
            "becomes": "`DataLoader(persistent_workers=)`",
        },
    )
    dataloader_prefetch_factor: int | None = field(
        default=None,
        metadata={
            "help": "Batches that each reading process holds ready; unset is torch's default.",
            "becomes": "`DataLoader(prefetch_factor=)`",
        },
    )
    remove_unused_columns: bool = field(
        default=True,
        metadata={
            "help": "Drop dataset columns that the model's forward has no parameter for.",
            "becomes": "columns dropped from a dataset, or by `RemoveColumnsCollator`",
        },
    )
    label_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "Keys of a batch that hold labels; unset is found out from the model.",
            "becomes": "the keys of a batch that `prediction_step` takes as labels",
        },
    )
    train_sampling_strategy: str = field(
        default="random",
        metadata={
            "help": "Order of training samples: 'random', 'sequential', or 'group_by_length' for little padding.",
            "becomes": "`build_loader(sampler=)` of the training data",
            "choices": SAMPLING_STRATEGIES,
        },
    )
    length_column_name: str = field(
        default="length",
        metadata={
            "help": "Column with the length of each sample, read for 'group_by_length'.",
            "becomes": "`LengthGroupedSampler(lengths=)`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class LaterDataArguments:
    """The fields about loading data that versions after 5.3.0 added."""

    dataloader_multiprocessing_context: str | None = field(
        default=None,
        metadata={
            "help": "How reading processes are started; unset is torch's own way ('fork' on an Apple GPU).",
            "becomes": "`DataLoader(multiprocessing_context=)`",
            "choices": START_METHODS,
        },
    )
    dataloader_in_order: bool = field(
        default=True,
        metadata={
            "help": "Take batches in the order they were asked for; otherwise as soon as a reading process has one.",
            "becomes": "`DataLoader(in_order=)`",
        },
    )
