"""How long to train, in what portions, and where the results go."""

from dataclasses import dataclass, field


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
