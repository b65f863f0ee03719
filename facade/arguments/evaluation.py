"""When to evaluate, on how much at a time, and what metrics are given."""

from dataclasses import dataclass, field

from .enums import IntervalStrategy


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
