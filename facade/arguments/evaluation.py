"""When to evaluate, on how much at a time, and what metrics are given."""

from dataclasses import dataclass, field

from ..enums import IntervalStrategy


@dataclass(init=False, repr=False, eq=False)
class EvaluationArguments:
    """The fields of `transformers.TrainingArguments` about evaluation and prediction."""

    eval_strategy: IntervalStrategy | str = field(
        default="no", metadata={"help": "When to evaluate in training: 'no', 'steps' (see eval_steps) or 'epoch'."}
    )
    eval_steps: float | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps from one evaluation to the next; below 1, a share of all. Unset: logging_steps."
        },
    )
    eval_delay: float = field(
        default=0, metadata={"help": "Steps or epochs, as eval_strategy counts, before which nothing is evaluated."}
    )
    per_device_eval_batch_size: int = field(
        default=8, metadata={"help": "Samples in one evaluation batch of one process."}
    )
    prediction_loss_only: bool = field(
        default=False, metadata={"help": "Keep only the loss of an evaluation, no predictions and no metrics."}
    )
    eval_on_start: bool = field(
        default=False, metadata={"help": "Evaluate once before the first step, so that faults show early."}
    )
    eval_do_concat_batches: bool = field(
        default=True, metadata={"help": "Join the predictions of all batches; otherwise give a list with one each."}
    )
    eval_use_gather_object: bool = field(
        default=False, metadata={"help": "Collect predictions that are not tensors from all processes by pickling."}
    )
    eval_accumulation_steps: int | None = field(
        default=None,
        metadata={"help": "Move predictions to main memory every so many batches; unset moves them at the end."},
    )
    include_for_metrics: list[str] = field(
        default_factory=list, metadata={"help": "What compute_metrics gets beside predictions: 'inputs', 'loss'."}
    )
    batch_eval_metrics: bool = field(
        default=False, metadata={"help": "Call compute_metrics on each batch, so that predictions are not kept."}
    )
