"""How samples are read and put into batches."""

from dataclasses import dataclass, field

SAMPLING_STRATEGIES = ["random", "sequential", "group_by_length"]
"""Orders in which training samples can be drawn."""


@dataclass(init=False, repr=False, eq=False)
class DataArguments:
    """The fields of `transformers.TrainingArguments` about loading data."""

    dataloader_drop_last: bool = field(
        default=False, metadata={"help": "Leave out the last batch of a pass where it would be a smaller one."}
    )
    dataloader_num_workers: int = field(
        default=0, metadata={"help": "Processes that read data ahead; with 0 the training process reads it itself."}
    )
    dataloader_pin_memory: bool = field(
        default=True, metadata={"help": "Put batches into page-locked memory, for quicker copies to a GPU."}
    )
    dataloader_persistent_workers: bool = field(
        default=False, metadata={"help": "Keep the reading processes alive from one pass to the next."}
    )
    dataloader_prefetch_factor: int | None = field(
        default=None, metadata={"help": "Batches that each reading process holds ready; unset is torch's default."}
    )
    remove_unused_columns: bool = field(
        default=True, metadata={"help": "Drop dataset columns that the model's forward has no parameter for."}
    )
    label_names: list[str] | None = field(
        default=None, metadata={"help": "Keys of a batch that hold labels; unset is found out from the model."}
    )
    train_sampling_strategy: str = field(
        default="random",
        metadata={
            "help": "Order of training samples: 'random', 'sequential', or 'group_by_length' for little padding.",
            "choices": SAMPLING_STRATEGIES,
        },
    )
    length_column_name: str = field(
        default="length", metadata={"help": "Column with the length of each sample, read for 'group_by_length'."}
    )
