"""The events of a training run, as the methods of one base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .recording import record
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments

EVENTS = (
    "on_init_end",
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_substep_end",
    "on_step_end",
    "on_evaluate",
    "on_predict",
    "on_save",
    "on_log",
    "on_prediction_step",
    "on_push_begin",
)
"""The names of all events."""

EventResult: TypeAlias = "TrainerControl | None"
"""What an event returns: a control that replaces the current one, or None to keep that."""


class TrainerCallback:
    """Base of callbacks: override the events that you need; the others cost next to nothing.

    Works like `transformers.TrainerCallback`.

    Every event is called as `event(args, state, control, **kwargs)`:

    - `args`: the `TrainingArguments`, to read. Under a `LightningBridge` these are its
      `BridgeArguments`, which have the same names where Lightning has the setting.
    - `state`: the `TrainerState`, to read.
    - `control`: the `TrainerControl`, whose switches an event may set, in place or on an object
      that it returns. Returning `None` keeps the current one.
    - `kwargs`: always `model`, `processing_class`, `optimizer`, `lr_scheduler`, `train_dataloader`
      and `eval_dataloader`, each possibly `None`; `metrics` in `on_evaluate` and `on_predict`,
      `logs` in `on_log`. Name those you need in the signature and end it with `**kwargs`.

    The order of a run: `on_init_end`, once; `on_train_begin`; per epoch `on_epoch_begin`, the
    steps, `on_epoch_end`; `on_train_end`. A step: `on_step_begin`, `on_substep_end` after each
    micro-batch except the last, `on_pre_optimizer_step`, `on_optimizer_step`, `on_step_end`. After
    `on_step_end` and `on_epoch_end` the Trainer reads the switches and fires `on_log`,
    `on_evaluate` and `on_save`, in this order.

    Not in transformers: a class that changes `logs` in `on_log` may set `adds_to_logs = True`, and
    is then called before those that only read them. A class with `state_dict()` and
    `load_state_dict(state_dict)`, of tensors and plain values, gets its state back when a training
    resumes from a checkpoint.
    """

    def record(self, **values: Any) -> None:
        """Add values to the next log, and in an evaluation to its metrics; see `Trainer.record`.

        Args:
            values: numbers, or tensors with one element, by name.

        Raises:
            RuntimeError: neither a training nor an evaluation is running.
            ValueError: a value is not a number, or a name is the Trainer's own, such as `loss`.
        """
        record(values)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that recommends `LightningBridge` if `name` is a hook of Lightning."""
        class_name = type(self).__name__
        advice = ""
        if name in ("setup", "teardown", "state_key") or name.startswith("on_"):
            advice = f". To a lightning.Trainer pass callbacks=[LightningBridge({class_name}())]"
        raise AttributeError(
            f"{class_name!r} object has no attribute {name!r}{advice}", name=name, obj=self
        )

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire once, when the Trainer has been constructed.

        No optimizer or dataloader exists yet.
        """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire before the first step of a run.

        Optimizer, scheduler and dataloader exist, and the checkpoint of a resumed run is loaded.
        `should_training_stop` has just been reset.
        """

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after the last step and the final logs.

        With `load_best_model_at_end` the best model is loaded.
        """

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire before the first batch of an epoch is read.

        `should_epoch_stop` has just been reset.
        """

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after the last step of an epoch.

        May set `should_log`, `should_evaluate` and `should_save`, which take effect at once, and
        `should_training_stop`.
        """

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire before the first micro-batch of a step.

        `should_log`, `should_evaluate` and `should_save` have just been reset.
        """

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after the gradients are summed and clipped, before the weights change."""

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after the weights have changed, before the gradients are dropped."""

    def on_substep_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after each micro-batch that is not the last of its step.

        It never fires without gradient accumulation.
        """

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after each step; `state.global_step` and `state.epoch` already count it.

        May set `should_log`, `should_evaluate` and `should_save`, which take effect at once, and
        `should_epoch_stop` and `should_training_stop`.
        """

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after an evaluation, with its `metrics`; with several evaluation sets, after each.

        `state.best_metric` does not include this evaluation yet. May set `should_training_stop`.
        """

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> EventResult:
        """Fire after `predict`, with its `metrics`."""

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after a checkpoint was written, in every process.

        A class that overrides this and does not read the files may set
        `reads_checkpoints = False`: the event may then fire before all files are on the disk.
        """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after `logs` were added to `state.log_history`.

        Later callbacks see changes that are made to `logs`.
        """

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire after each batch of an evaluation or a prediction."""

    def on_push_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> EventResult:
        """Fire before a model is pushed to a hub."""


def reads_checkpoints(callback: object) -> bool:
    """Return whether a callback may read the files of a checkpoint in `on_save`.

    True for any callback that overrides `on_save`, unless its class sets
    `reads_checkpoints = False`.

    Args:
        callback: the callback, of this package or of a user.
    """
    on_save = getattr(callback, "on_save", None)
    if on_save is None:
        return False

    # Compared by name, as the callback may be derived from the TrainerCallback of transformers.
    if getattr(on_save, "__qualname__", "") == "TrainerCallback.on_save":
        return False
    return getattr(callback, "reads_checkpoints", True)
