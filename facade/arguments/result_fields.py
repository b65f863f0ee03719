"""The fields of the training arguments about results: logs, evaluations, checkpoints, uploads."""

from dataclasses import dataclass, field
from typing import Literal

from .enums import HubStrategy, IntervalStrategy, SaveStrategy

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
            "metavar": "WHICH",
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
    report_to: None | str | list[str] = field(  # noqa: RUF036 - TRL takes the last but one
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
        default=None,
        metadata={
            "help": "Hub Space that Trackio writes to, such as 'trackio'; unset keeps its data on this machine.",
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


@dataclass(init=False, repr=False, eq=False)
class EvaluationArguments:
    """The fields of `transformers.TrainingArguments` about evaluation and prediction."""

    eval_strategy: IntervalStrategy | str = field(
        default="no",
        metadata={
            "help": "When to evaluate in training: 'no', 'steps' (see eval_steps) or 'epoch'.",
            "becomes": "`DefaultFlowCallback`: `control.should_evaluate`, obeyed inside of `fit`",
        },
    )
    eval_steps: float | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps from one evaluation to the next; below 1, a share of all. Unset: logging_steps.",
            "becomes": "`state.eval_steps`, read by `DefaultFlowCallback`",
        },
    )
    eval_delay: float = field(
        default=0,
        metadata={
            "help": "Steps or epochs, as eval_strategy counts, before which nothing is evaluated.",
            "becomes": "`DefaultFlowCallback`: no `control.should_evaluate` before it",
        },
    )
    per_device_eval_batch_size: int = field(
        default=8,
        metadata={
            "help": "Samples in one evaluation batch of one process.",
            "becomes": "`build_loader(batch_size=)` of evaluation and prediction",
        },
    )
    prediction_loss_only: bool = field(
        default=False,
        metadata={
            "help": "Keep only the loss of an evaluation, no predictions and no metrics.",
            "becomes": "`prediction_step(prediction_loss_only=)`",
        },
    )
    eval_on_start: bool = field(
        default=False,
        metadata={
            "help": "Evaluate once before the first step, so that faults show early.",
            "becomes": "an evaluation in `on_train_start`",
        },
    )
    eval_do_concat_batches: bool = field(
        default=True,
        metadata={
            "help": "Join the predictions of all batches; otherwise give a list with one each.",
            "becomes": "how `evaluation_loop` joins what it collected",
        },
    )
    eval_use_gather_object: bool = field(
        default=False,
        metadata={
            "help": "Collect predictions that are not tensors from all processes by pickling.",
            "becomes": "`all_gather_object` in place of a gather of tensors",
        },
    )
    eval_accumulation_steps: int | None = field(
        default=None,
        metadata={
            "help": "Move predictions to main memory every so many batches; unset moves them at the end.",
            "becomes": "how often `evaluation_loop` moves what it collected to the CPU",
        },
    )
    include_for_metrics: list[str] = field(
        default_factory=list,
        metadata={
            "help": "What compute_metrics gets beside predictions: 'inputs', 'loss'.",
            "becomes": "`EvalPrediction.inputs` and `EvalPrediction.losses`",
        },
    )
    batch_eval_metrics: bool = field(
        default=False,
        metadata={
            "help": "Call compute_metrics on each batch, so that predictions are not kept.",
            "becomes": "`compute_metrics(prediction, compute_result=)` after each batch",
        },
    )


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


@dataclass(init=False, repr=False, eq=False)
class HubArguments:
    """The fields of `transformers.TrainingArguments` about the Hub."""

    push_to_hub: bool = field(
        default=False,
        metadata={
            "help": "Upload the model to the Hub whenever it is saved.",
            "becomes": "uploads beside the training, and after `save_model`",
        },
    )
    # Not in repr: the one that dataclasses write for a subclass would show it.
    hub_token: str | None = field(
        default=None,
        repr=False,
        metadata={
            "help": "Token for uploading; unset takes the one this machine knows.",
            "becomes": "the token of the upload",
        },
    )
    hub_private_repo: bool | None = field(
        default=None,
        metadata={
            "help": "Make a new repository private; unset does what the owner's account says.",
            "becomes": "`private` of a new repository",
        },
    )
    hub_model_id: str | None = field(
        default=None,
        metadata={
            "help": "Repository to upload to; unset takes the name of output_dir.",
            "becomes": "the repository's name",
        },
    )
    hub_strategy: HubStrategy | str = field(
        default="every_save",
        metadata={
            "help": "What to upload and when: 'end', 'every_save', 'checkpoint' or 'all_checkpoints'.",
            "becomes": "what is uploaded, and when",
        },
    )
    hub_always_push: bool = field(
        default=False,
        metadata={
            "help": "Upload again although the upload before is still under way.",
            "becomes": "no upload is left out, they wait for each other",
        },
    )
    hub_revision: str | None = field(
        default=None,
        metadata={
            "help": "Branch of the repository to upload to; made if it is not there.",
            "becomes": "the branch that is uploaded to, and downloaded from",
        },
    )
