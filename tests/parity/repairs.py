"""The reference 5.3.0 without the defects that its later versions fixed: lightrainer has the fixed behaviour.

- Under accumulation 5.3.0 divides the loss by the number of micro-batches itself and lets accelerate divide it once
  more: its gradients are too small by that factor. Right in 5.10 and later.
- With `save_strategy="best"` it forgets which checkpoint is the best one: `load_best_model_at_end` loads nothing, and
  rotation may delete the best. Right in 5.23.
- After a resumption it divides the losses of the steps since then by the number of all steps, so that `train_loss` is
  too small. Right in 5.23.
- It resumes a model with several adapters without its default one. Right in 5.23.
"""

from functools import cache
from pathlib import Path
from types import ModuleType


def trainer_class(api: ModuleType) -> type:
    """The library's `Trainer`; 5.3.0's with its defects repaired."""
    return _repaired(api.Trainer) if getattr(api, "__version__", None) == "5.3.0" else api.Trainer


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
            if len(getattr(self.model, "peft_config", ())) > 1 and Path(checkpoint, "adapter_config.json").exists():
                self.model.load_adapter(checkpoint, "default", is_trainable="default" in self.model.active_adapters)

        def log(self, logs, *positional, **keywords):
            if "train_loss" in logs and self.first_step:
                logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step - self.first_step, 0.001)
            super().log(logs, *positional, **keywords)

        def _determine_best_metric(self, metrics, trial):
            is_best = super()._determine_best_metric(metrics, trial)
            if is_best and self.args.save_strategy == "best":
                # The checkpoint is written right after this.
                step = self.state.best_global_step = self.state.global_step
                self.state.best_model_checkpoint = str(Path(self.args.output_dir) / f"checkpoint-{step}")
            return is_best

    return Repaired
