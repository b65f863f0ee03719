"""The phase of a training under a `LightningBridge`, and which hook fires which events.

The hooks of a training, in the order in which Lightning calls them, with the events that fire in
each. "module." marks a method of the LightningModule that is wrapped while the training runs.

    setup                                   on_init_end, once per bridge
    on_train_start                          on_train_begin
      on_train_epoch_start                  on_epoch_begin
        on_train_batch_start                on_step_begin, at the first micro-batch of a step
        module.on_train_batch_start         - (returns -1 to leave the epoch)
        on_before_optimizer_step            on_pre_optimizer_step, under manual optimization
        module.configure_gradient_clipping  on_pre_optimizer_step, under automatic optimization
        step hook of the optimizer          on_optimizer_step
        on_train_batch_end                  on_substep_end, or on_step_end, on_log, on_save
          on_validation_start               - (Lightning validates here if it is due or requested)
          on_validation_batch_end           on_prediction_step
          on_validation_end                 on_log, on_evaluate, on_save
      on_train_epoch_end                    on_epoch_end, on_log, a requested validation, on_save
    on_train_end                            on_log, on_train_end
    teardown                                -

A checkpoint that a ModelCheckpoint of Lightning writes fires `on_save` at the next of these hooks.
module.on_save_checkpoint is wrapped for files of weights only: Lightning tells no callback of them.
An exception skips the rest: `on_exception` and `teardown` restore what was wrapped.

`TrainingPhase` has the states between the hooks: which hook sets each of them, and which reads it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainingPhase:
    """Where a training is between two hooks.

    Each field names the hooks that set it (`set`), that set it back to its default (`reset`), and
    that decide by it (`read`).
    """

    is_training: bool = False
    """Set: on_train_start. Reset: on_train_end, on_exception, teardown.

    Read: on_validation_end, since `trainer.validate` alone saves and stops nothing.
    """

    first_step: int = 0
    """The value of `global_step` when the training began.

    Set: on_train_start. Read: on_train_batch_end, at the first step.
    """

    is_in_epoch: bool = False
    """Whether `on_epoch_begin` was fired for the current epoch.

    Set: on_train_epoch_start. Reset: on_train_epoch_end. Read: on_train_batch_start, since a
    training that resumes in mid-epoch has no on_train_epoch_start.
    """

    batches_done_in_epoch: int = 0
    """Set: on_train_batch_end, and on_train_batch_start of a training that resumes in mid-epoch.
    Reset: on_train_epoch_start. Read: on_train_batch_start.
    """

    has_trained_in_epoch: bool = False
    """Whether this training has trained a batch of the epoch, which a resumption may find complete.

    Set: on_train_batch_end. Reset: on_train_epoch_end, which reads it.
    """

    must_leave_epoch: bool = False
    """Whether a callback has set `should_epoch_stop`.

    Set: on_train_batch_start. Reset: on_train_epoch_start. Read: module.on_train_batch_start.
    """

    must_exclude_metrics: bool = False
    """Whether the metrics of the next batch begin a log: those before it are of a validation, or
    were restored from a checkpoint.

    Set: on_train_start, on_validation_end. Reset: on_train_batch_start, which reads it.
    """

    is_in_step: bool = False
    """Whether `on_step_begin` was fired for the current step, which may have several batches.

    Set: on_train_batch_start. Reset: on_train_batch_end of the last micro-batch,
    on_train_epoch_end. Read: on_train_batch_start, and the step hook of the optimizer.
    """

    global_step_before_batch: int = 0
    """Lightning's count of optimizer steps before the current batch.

    Set: on_train_batch_start. Read: on_train_batch_end, which sees by it whether a step was done.
    """

    awaits_pre_optimizer_step: bool = False
    """Whether `on_pre_optimizer_step` has not been fired for the current batch.

    Set: on_train_batch_start. Reset: when the event fires. Read: on_train_batch_end, which fires it
    if an optimizer step was counted without it.
    """

    awaits_optimizer_step: bool = False
    """The same for `on_optimizer_step`, which the scaler of fp16 may skip."""

    last_evaluated_step: int = 0
    """Set: on_validation_end, and on_train_start of a resumed training. Read: on_train_epoch_end,
    which does not evaluate a step twice.
    """

    evaluation_start_time: float = 0.0
    """Set: on_validation_start. Read: on_validation_end, for `eval_runtime`."""
