"""The reference without the defects that are mended here.

Of all versions:

- A mean loss is divided by the number of micro-batches, so that the last, smaller one of an epoch
  counts as much as the others; and not at all for models that accept `num_items_in_batch`, use it
  or not.

Of 5.3.0, mended in later versions as well:

- Under accumulation 5.3.0 divides the loss by the number of micro-batches itself and lets
  accelerate divide it once more: its gradients are too small by that factor. Right in 5.10 and
  later.
- With `save_strategy="best"` it forgets which checkpoint is the best one: `load_best_model_at_end`
  loads nothing, and rotation may delete the best. Right in 5.23.
- After a resumption it divides the losses of the steps since then by the number of all steps, so
  that `train_loss` is too small. Right in 5.23.
- It resumes a model with several adapters without its default one. Right in 5.23.
"""

from functools import cache
from pathlib import Path
from types import ModuleType

RETURN_A_MEAN = {"BertForSequenceClassification", "T5ForConditionalGeneration"}
"""Models here that accept `num_items_in_batch` and do not use it."""


def trainer_class(api: ModuleType) -> type:
    """The library's `Trainer`, with the defects of the reference repaired."""
    if api.__name__ != "transformers":
        return api.Trainer
    weighing = _weighing(api.Trainer)
    return _repaired(weighing) if api.__version__ == "5.3.0" else weighing


def items_of_mean(batch: dict) -> int:
    """Return the number of class labels that count, or of rows without class labels."""
    labels = batch.get("labels")
    if labels is None or labels.is_floating_point():
        return len(next(iter(batch.values())))
    return int(labels.ne(-100).sum())


@cache
def _weighing(base: type) -> type:
    class Weighing(base):
        def __init__(self, *positional, **keywords):
            super().__init__(*positional, **keywords)
            if type(self.model).__name__ in RETURN_A_MEAN:
                self.model_accepts_loss_kwargs = False

        def get_batch_samples(self, *positional, **keywords):
            samples, items = super().get_batch_samples(*positional, **keywords)
            self.counts = [items_of_mean(sample) for sample in samples]
            self.trained = 0
            return samples, items

        def training_step(self, *positional, **keywords):
            if self.compute_loss_func is None:  # otherwise it divides nothing
                self.current_gradient_accumulation_steps = (
                    sum(self.counts) / self.counts[self.trained]
                )
            self.trained += 1
            return super().training_step(*positional, **keywords)

    return Weighing


@cache
def _repaired(base: type) -> type:
    class Repaired(base):
        def __init__(self, *positional, **keywords):
            super().__init__(*positional, **keywords)
            self.accelerator.gradient_accumulation_steps = 1

        def train(self, *positional, **keywords):
            output = super().train(*positional, **keywords)
            return output._replace(training_loss=output.metrics["train_loss"])

        def _init_training_state(self, *positional, **keywords):
            result = super()._init_training_state(*positional, **keywords)
            self.first_step = self.state.global_step
            return result

        def _load_from_checkpoint(self, checkpoint, model=None):
            super()._load_from_checkpoint(checkpoint, model)
            if (
                len(getattr(self.model, "peft_config", ())) > 1
                and Path(checkpoint, "adapter_config.json").exists()
            ):
                self.model.load_adapter(
                    checkpoint, "default", is_trainable="default" in self.model.active_adapters
                )

        def log(self, logs, *positional, **keywords):
            if "train_loss" in logs and self.first_step:
                logs["train_loss"] = self._total_loss_scalar / max(
                    self.state.global_step - self.first_step, 0.001
                )
            super().log(logs, *positional, **keywords)

        def _determine_best_metric(self, metrics, trial):
            is_best = super()._determine_best_metric(metrics, trial)
            if is_best and self.args.save_strategy == "best":
                # The checkpoint is written right after this.
                step = self.state.best_global_step = self.state.global_step
                self.state.best_model_checkpoint = str(
                    Path(self.args.output_dir) / f"checkpoint-{step}"
                )
            return is_best

    return Repaired
