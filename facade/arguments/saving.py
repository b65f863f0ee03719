"""When checkpoints are written, what is in them, and how they are used again."""

from dataclasses import dataclass, field

from .enums import SaveStrategy


@dataclass(init=False, repr=False, eq=False)
class SavingArguments:
    """The fields of `transformers.TrainingArguments` about writing checkpoints."""

    save_only_model: bool = field(
        default=False,
        metadata={
            "help": "Write the weights alone: smaller, but training cannot be resumed from it.",
            "becomes": "no optimizer, schedule and random state in `checkpoint-N`",
        },
    )
    save_strategy: SaveStrategy | str = field(
        default="steps",
        metadata={
            "help": "When to write a checkpoint: 'no', 'steps' (see save_steps), 'epoch' or 'best'.",
            "becomes": "`DefaultFlowCallback`: `control.should_save`",
        },
    )
    save_steps: float = field(
        default=500,
        metadata={
            "help": "Optimizer steps from one checkpoint to the next; below 1, a share of all.",
            "becomes": "`state.save_steps`, read by `DefaultFlowCallback`",
        },
    )
    save_on_each_node: bool = field(
        default=False,
        metadata={
            "help": "Write on every machine; leave it off where machines share the disk that is written to.",
            "becomes": "`args.should_save`",
        },
    )
    save_total_limit: int | None = field(
        default=None,
        metadata={
            "help": "Checkpoints to keep, newest and best first; unset or 0 keeps all of them.",
            "becomes": "`rotate_checkpoints(save_total_limit=)`",
        },
    )
    enable_jit_checkpoint: bool = field(
        default=False,
        metadata={
            "help": "On SIGTERM write a checkpoint at the end of the step, and exit with 143.",
            "becomes": "a handler of SIGTERM that saves and stops",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class CheckpointUseArguments:
    """The fields of `transformers.TrainingArguments` about the best checkpoint and about resuming."""

    load_best_model_at_end: bool = field(
        default=False,
        metadata={
            "help": "End training with the weights of the best checkpoint. Needs evaluation.",
            "becomes": "the best checkpoint's weights are loaded in `on_train_end`",
        },
    )
    metric_for_best_model: str | None = field(
        default=None,
        metadata={
            "help": "Metric that decides which checkpoint is best; 'loss' if one is needed.",
            "becomes": "which metric `state.best_metric` is",
        },
    )
    greater_is_better: bool | None = field(
        default=None,
        metadata={
            "help": "Whether a larger metric is a better one. Unset: yes, unless its name ends in 'loss'.",
            "becomes": "how `state.best_metric` is compared",
        },
    )
    ignore_data_skip: bool = field(
        default=False,
        metadata={
            "help": "On resuming start at the beginning of the data; quicker, but not the same.",
            "becomes": "`WindowLoader` begins at the start of an epoch",
        },
    )
    restore_callback_states_from_checkpoint: bool = field(
        default=False,
        metadata={
            "help": "On resuming bring callbacks back to the state they were saved in.",
            "becomes": "`stateful_callbacks` of `trainer_state.json` are given back",
        },
    )
