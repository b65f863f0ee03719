"""What is logged, how often, and to whom."""

from dataclasses import dataclass, field
from typing import Literal

from .enums import IntervalStrategy

LOG_LEVELS = {"detail": 10, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50, "passive": -1}
"""Log levels by name, as numbers of the standard library; "passive" leaves the level as the program has it."""


@dataclass(init=False, repr=False, eq=False)
class ReportingArguments:
    """The fields of `transformers.TrainingArguments` about logs, progress bars and trackers."""

    logging_strategy: IntervalStrategy | str = field(
        default="steps",
        metadata={
            "help": "When to log: 'no', 'steps' (see logging_steps) or 'epoch'.",
            "becomes": "`DefaultFlowCallback`: `control.should_log`",
        },
    )
    logging_steps: float = field(
        default=500,
        metadata={
            "help": "Optimizer steps from one log to the next; below 1, a share of all steps.",
            "becomes": "`state.logging_steps`, read by `DefaultFlowCallback`",
        },
    )
    logging_first_step: bool = field(
        default=False,
        metadata={
            "help": "Log after the very first step as well.",
            "becomes": "`DefaultFlowCallback`: `control.should_log` at step 1",
        },
    )
    log_on_each_node: bool = field(
        default=True,
        metadata={
            "help": "Log on the first process of every machine, not on the first machine only.",
            "becomes": "`args.should_log`",
        },
    )
    logging_nan_inf_filter: bool = field(
        default=True,
        metadata={
            "help": "Leave losses that are NaN or infinite out of the logged mean; gradients are not touched.",
            "becomes": "`LossMeter(skip_not_finite=)`",
        },
    )
    include_num_input_tokens_seen: str | bool = field(
        default="no",
        metadata={
            "help": "Count input tokens: 'all', 'non_padding' (by attention mask) or 'no'; True means 'all'.",
            "value_name": "WHICH",
            "becomes": "`state.num_input_tokens_seen`",
        },
    )
    log_level: str = field(
        default="passive",
        metadata={
            "help": "Level of the program's log on main processes; 'passive' leaves it alone.",
            "becomes": "level of the logger `lightrainer` where `args.should_log`",
            "choices": list(LOG_LEVELS),
        },
    )
    log_level_replica: str = field(
        default="warning",
        metadata={
            "help": "Level of the program's log on all other processes.",
            "becomes": "level of the logger `lightrainer` elsewhere",
            "choices": list(LOG_LEVELS),
        },
    )
    disable_tqdm: bool | None = field(
        default=None,
        metadata={
            "help": "Show no progress bars. Unset: bars are shown unless the log level is above warning.",
            "becomes": "`PrinterCallback` in place of `ProgressCallback`",
        },
    )
    report_to: str | list[str] | None = field(
        default="none",
        metadata={
            "help": "Trackers that receive the logs, such as 'tensorboard'; 'all' installed ones, or 'none'.",
            "becomes": "one callback each, such as `WandbCallback`; see [its page](../user/experiment-tracking.md)",
        },
    )
    run_name: str | None = field(
        default=None,
        metadata={
            "help": "Name of this run in trackers.",
            "becomes": "the run's name in wandb, MLflow, Comet, SwanLab and Trackio",
        },
    )
    project: str = field(
        default="huggingface",
        metadata={
            "help": "Project name, read by the tracker Trackio only.",
            "becomes": "`project` of `trackio.init`",
        },
    )
    trackio_space_id: str | None = field(
        default="trackio",
        metadata={
            "help": "Hub Space that Trackio writes to; None keeps its data on this machine.",
            "becomes": "`space_id` of `trackio.init`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class LaterReportingArguments:
    """The fields about trackers that versions after 5.3.0 added."""

    trackio_bucket_id: str | None = field(
        default=None,
        metadata={
            "help": "Hub Bucket that Trackio keeps its data in; unset lets Trackio choose.",
            "becomes": "`bucket_id` of `trackio.init`",
        },
    )
    trackio_static_space_id: str | None | Literal[False] = field(  # noqa: RUF036 - a command line reads the first
        default=None,
        metadata={
            "help": "Hub Space for the pages that Trackio makes when training is over; False makes none.",
            "becomes": "`new_space_id` of `trackio.freeze`",
        },
    )
