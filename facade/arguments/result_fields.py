"""Fields of the training arguments about logs, evaluations, checkpoints and uploads."""

from dataclasses import dataclass
from typing import Literal

from .argument import anything, argument, integer
from .enums import HubStrategy, IntervalStrategy, SaveStrategy
from .readers import read_metric_inputs, read_static_space, read_token_counting, read_trackers

LOG_LEVELS = {
    "detail": 10,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "passive": -1,
}
"""Log levels by name, as numbers of the standard library; "passive" leaves the level as the
program has it.
"""
AGGREGATES = ["mean", "median", "min", "max"]
"""Functions of NumPy over the metrics of several sets."""


@dataclass(init=False, repr=False, eq=False)
class ReportingArguments:
    """The fields of `transformers.TrainingArguments` about logs, progress bars and trackers."""

    logging_strategy: IntervalStrategy | str = argument(
        "steps",
        "When to log: 'no', 'steps' (see logging_steps) or 'epoch'.",
        maps_to="`control.should_log`",
    )
    logging_steps: float = argument(
        500,
        "Steps between logs; below 1, a share of all.",
        maps_to="`state.logging_steps`",
        optional=True,
    )
    logging_first_step: bool = argument(
        False, "Also log after the first step.", maps_to="`control.should_log` at step 1"
    )
    log_on_each_node: bool = argument(
        True, "Log on the first process of each node.", maps_to="`args.should_log`"
    )
    logging_nan_inf_filter: bool = argument(
        True, "Exclude NaN and inf losses from logs.", maps_to="`LossMeter(skip_not_finite=)`"
    )
    include_num_input_tokens_seen: str | bool = argument(
        "no",
        "Count input tokens: 'all', 'non_padding' (by attention mask) or 'no'; True means 'all'.",
        maps_to="`state.num_input_tokens_seen`",
        metavar="WHICH",
        read=read_token_counting,
    )
    log_level: str = argument(
        "passive",
        "Log level on main processes; 'passive' keeps the current level.",
        maps_to="level of the logger `lightrainer` where `args.should_log`",
        choices=list(LOG_LEVELS),
    )
    log_level_replica: str = argument(
        "warning",
        "Log level on all other processes.",
        maps_to="level of the logger `lightrainer` elsewhere",
        choices=list(LOG_LEVELS),
    )
    disable_tqdm: bool | None = argument(
        None,
        "Disable progress bars; by default it follows the log level.",
        maps_to="`PrinterCallback`",
    )
    report_to: None | str | list[str] = argument(  # noqa: RUF036 - TRL takes the last but one
        "none",
        "Trackers that receive the logs, such as 'tensorboard'; 'all' installed ones, or 'none'.",
        maps_to="one callback each, such as `WandbCallback`; see [its "
        "page](../user/experiment-tracking.md). Not there: 'neptune'",
        read=read_trackers,
        none_factory=list,
    )
    run_name: str | None = argument(
        None,
        "Name of this run in trackers.",
        maps_to="wandb, MLflow, Comet, SwanLab and Trackio",
        read=anything,
    )
    project: str = argument(
        "huggingface", "Project name, read by Trackio only.", maps_to="`project` of `trackio.init`"
    )
    trackio_space_id: str | None = argument(
        None,
        "Hub Space that Trackio writes to; by default data stays local.",
        maps_to="`space_id` of `trackio.init`",
    )


@dataclass(init=False, repr=False, eq=False)
class LaterReportingArguments:
    """The fields about trackers that versions after 5.3.0 added."""

    trackio_bucket_id: str | None = argument(
        None,
        "Hub Bucket for the data of Trackio; by default Trackio chooses one.",
        maps_to="`bucket_id` of `trackio.init`",
    )
    trackio_static_space_id: str | None | Literal[False] = argument(  # noqa: RUF036 - a command line reads the first
        None,
        "Hub Space for the static dashboard of Trackio; False for none.",
        maps_to="`new_space_id` of `trackio.freeze`",
        read=read_static_space,
    )


@dataclass(init=False, repr=False, eq=False)
class OwnReportingArguments:
    """The fields about logs that the reference does not have."""

    record_model_losses: bool = argument(
        False,
        "Also log the losses in loss_dict and *_loss of the model's outputs.",
        maps_to="`Trainer.record`",
    )
    eval_aggregate: str | None = argument(
        None,
        "With a dict of datasets, also log the mean, median, min or max of each metric over them.",
        maps_to="metrics `eval_<aggregate>_<metric>`",
        choices=AGGREGATES,
    )


@dataclass(init=False, repr=False, eq=False)
class EvaluationArguments:
    """The fields of `transformers.TrainingArguments` about evaluation and prediction."""

    eval_strategy: IntervalStrategy | str = argument(
        "no",
        "When to evaluate: 'no', 'steps' (see eval_steps) or 'epoch'.",
        maps_to="`control.should_evaluate`",
    )
    eval_steps: float | None = argument(
        None, "Steps between evaluations; by default logging_steps.", maps_to="`state.eval_steps`"
    )
    eval_delay: float = argument(
        0, "Steps or epochs before the first evaluation.", maps_to="`control.should_evaluate`"
    )
    per_device_eval_batch_size: int = argument(
        8,
        "Evaluation batch size per process.",
        maps_to="`build_loader(batch_size=)` of evaluation and prediction",
        read=integer(low=1),
    )
    prediction_loss_only: bool = argument(
        False, "Only compute the loss.", maps_to="`prediction_step(prediction_loss_only=)`"
    )
    eval_on_start: bool = argument(
        False,
        "Evaluate once before the first step, to detect errors early.",
        maps_to="an evaluation in `on_train_start`",
    )
    eval_do_concat_batches: bool = argument(
        True,
        "Concatenate the predictions of all batches instead of returning a list.",
        maps_to="how `evaluation_loop` joins them",
    )
    eval_use_gather_object: bool = argument(
        False,
        "Collect predictions that are not tensors by pickling.",
        maps_to="`all_gather_object` in place of a gather",
    )
    eval_accumulation_steps: int | None = argument(
        None,
        "Batches after which predictions are moved to the CPU; by default at the end.",
        maps_to="`evaluation_loop`",
        read=integer(low=1, remedy=" Leave it out to move predictions once, at the end."),
    )
    include_for_metrics: list[str] = argument(
        list,
        "What to pass to metrics in addition: 'inputs', 'loss'.",
        maps_to="`EvalPrediction.inputs` and `.losses`",
        read=read_metric_inputs,
        optional=True,
    )
    batch_eval_metrics: bool = argument(
        False,
        "Call compute_metrics on each batch, keeping no predictions.",
        maps_to="`compute_metrics(..., compute_result=)`",
    )


@dataclass(init=False, repr=False, eq=False)
class SavingArguments:
    """The fields of `transformers.TrainingArguments` about writing checkpoints."""

    save_only_model: bool = argument(
        False,
        "Save only the weights, from which training cannot be resumed.",
        maps_to="`checkpoint-N` without other states",
    )
    save_strategy: SaveStrategy | str = argument(
        "steps",
        "When to write a checkpoint: 'no', 'steps', 'epoch' or 'best'.",
        maps_to="`control.should_save`",
    )
    save_steps: float = argument(
        500,
        "Steps between checkpoints; below 1, a share of all.",
        maps_to="`state.save_steps`",
        optional=True,
    )
    save_on_each_node: bool = argument(
        False, "Save on each node instead of to a shared disk.", maps_to="`args.should_save`"
    )
    save_total_limit: int | None = argument(
        None,
        "Maximum number of checkpoints to keep; 0 keeps all.",
        maps_to="`rotate_checkpoints(save_total_limit=)`",
    )
    enable_jit_checkpoint: bool = argument(
        False, "On SIGTERM save a checkpoint and exit with 143.", maps_to="a handler of SIGTERM"
    )


@dataclass(init=False, repr=False, eq=False)
class CheckpointUseArguments:
    """The fields of `transformers.TrainingArguments` about the best checkpoint and about
    resuming.
    """

    load_best_model_at_end: bool = argument(
        False, "Load the best checkpoint at the end of training.", maps_to="`on_train_end`"
    )
    metric_for_best_model: str | None = argument(
        None,
        "Metric to select the best checkpoint; by default 'loss' if needed.",
        maps_to="`state.best_metric`",
    )
    greater_is_better: bool | None = argument(
        None,
        "Whether a larger metric is better; by default not for a loss.",
        maps_to="`state.best_metric`",
    )
    ignore_data_skip: bool = argument(
        False, "Resume from the start of the data.", maps_to="`WindowLoader`"
    )
    restore_callback_states_from_checkpoint: bool = argument(
        False,
        "Restore the states of callbacks when resuming.",
        maps_to="`stateful_callbacks` of `trainer_state.json`",
    )


@dataclass(init=False, repr=False, eq=False)
class HubArguments:
    """The fields of `transformers.TrainingArguments` about the Hub."""

    push_to_hub: bool = argument(
        False, "Upload the model to the Hub whenever it is saved.", maps_to="background uploads"
    )
    # Not in repr: the one that dataclasses write for a subclass would show it.
    hub_token: str | None = argument(
        None,
        "Token for uploads; by default the one stored on this machine.",
        maps_to="the token of the upload",
        repr=False,
    )
    hub_private_repo: bool | None = argument(
        None,
        "Create a private repository; by default the account's setting.",
        maps_to="`private` of the repository",
    )
    hub_model_id: str | None = argument(
        None, "Repository to upload to; by default the name of output_dir.", maps_to="its name"
    )
    hub_strategy: HubStrategy | str = argument(
        "every_save",
        "What to upload: 'end', 'every_save', 'checkpoint' or 'all_checkpoints'.",
        maps_to="the uploads",
    )
    hub_always_push: bool = argument(
        False,
        "Start an upload even if another one is running.",
        maps_to="uploads wait for each other",
    )
    hub_revision: str | None = argument(
        None,
        "Branch to upload to; created if missing.",
        maps_to="the branch of uploads and downloads",
    )
