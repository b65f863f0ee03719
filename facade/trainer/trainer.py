"""`Trainer`, put together."""

from __future__ import annotations

from .searching import Searching


class Trainer(Searching):
    """As `transformers.Trainer`, but PyTorch Lightning's loops, strategies and precision plugins do the work.

    Every documented method is called by the running system and can be overridden. Nothing of Lightning is built
    before `train`, `evaluate` or `predict`, so arguments may be changed until then; `print(trainer.plan)` shows what
    they become.

    Args:
        model: the model to train: any `torch.nn.Module` that returns a loss, in a mapping, as the first of a tuple, or
            as an attribute `loss`.
        args: the training arguments, by default those of the folder `tmp_trainer`.
        data_collator: a list of samples -> a batch; by default padding with the processing class, if it can pad,
            and otherwise `default_data_collator`.
        train_dataset: map-style or iterable. Columns that the model does not take are left out.
        eval_dataset: the same, or a dict of datasets, each evaluated under its name.
        processing_class: tokenizer or the like, saved beside the model.
        model_init: makes the model, anew for each `train`; may take a trial.
        compute_loss_func: `(outputs, labels, num_items_in_batch)` -> loss. Where `compute_loss` is overridden it may be
            any value, which says that the override divides its loss by the items of all micro-batches of a step.
        compute_metrics: `EvalPrediction` -> metrics by name.
        callbacks: TrainerCallbacks, their classes, and callbacks of Lightning.
        optimizers: optimizer and learning rate scheduler, instead of those that the arguments describe.
        optimizer_cls_and_kwargs: optimizer class and arguments, for parameters that are grouped as usual.
        preprocess_logits_for_metrics: `(logits, labels)` -> what is kept of the logits of a batch.

    Attributes:
        model: the user's model, never a wrapper.
        model_wrapped: the model to call for a forward pass.
        state, control: see `TrainerState`, `TrainerControl`.
        callback_handler: holds the TrainerCallbacks.
        is_in_train: whether `train` is running.
        accelerator: the members of `accelerate.Accelerator` that scripts use.

    Raises:
        RuntimeError: there is neither a model nor a model_init (also a ValueError).
        ValueError, TypeError: parameters that cannot be, or not together; all of them in one message.
    """
