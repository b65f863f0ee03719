"""The settings of a Lightning Trainer as `args` of callbacks, under the documented names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.metric_directions import known_direction
from ...lightning_modules.common.suggestions import did_you_mean
from .._compilation import is_compiled
from .logs import as_metric_for_best_model

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer


def only_loader(loaders: object) -> object:
    """Return the loader of a list of one, and anything else unchanged."""
    if not isinstance(loaders, (list, tuple)):
        return loaders
    loader_list = cast("Sequence[object]", loaders)
    return loader_list[0] if len(loader_list) == 1 else loader_list


def _batch_size(loaders: object) -> int | None:
    return getattr(only_loader(loaders), "batch_size", None)


def _num_train_epochs(trainer: Trainer) -> float:
    return max(trainer.max_epochs or 0, 0)


def _learning_rate(trainer: Trainer) -> float | None:
    if not trainer.optimizers:
        return None
    group = trainer.optimizers[0].param_groups[0]
    return float(group.get("initial_lr", group["lr"]))


def _max_grad_norm(trainer: Trainer) -> float:
    """Return the limit of the norm of all gradients; 0 if they are not clipped by it."""
    if trainer.gradient_clip_algorithm == "value":
        return 0.0
    return trainer.gradient_clip_val or 0.0


def _output_dir(trainer: Trainer) -> str:
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    return str(folder or trainer.default_root_dir)


def _logging_strategy(trainer: Trainer) -> str:
    return "steps" if _logging_steps(trainer) else "no"


def _logging_steps(trainer: Trainer) -> int:
    # Lightning sets this attribute without declaring it.
    return cast(Any, trainer).log_every_n_steps


def _save_strategy(trainer: Trainer) -> str:
    return "epoch" if trainer.checkpoint_callbacks else "no"


def _report_to(trainer: Trainer) -> list[str]:
    """Return the trackers of `report_to`: none, since Lightning's loggers are its own."""
    return []


def _seed(trainer: Trainer) -> int:
    """Return the seed of `seed_everything`, which Lightning keeps in an environment variable."""
    return int(os.environ.get("PL_GLOBAL_SEED", 42))


def _eval_strategy(trainer: Trainer) -> str:
    if not trainer.enable_validation:
        return "no"
    if trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch:
        return "epoch"
    return "steps"


def _eval_steps(trainer: Trainer) -> int | None:
    interval = trainer.val_check_interval
    return interval if isinstance(interval, int) else None


def _monitoring_callback(trainer: Trainer) -> Callback | None:
    """Return the callback of Lightning that watches a metric; None if none does."""
    for callback in (trainer.checkpoint_callback, trainer.early_stopping_callback):
        if getattr(callback, "monitor", None):
            return callback
    return None


def _metric_for_best_model(trainer: Trainer) -> str | None:
    callback = _monitoring_callback(trainer)
    return as_metric_for_best_model(getattr(callback, "monitor", None))


TRAINER_SETTINGS: dict[str, Callable[[Trainer], Any]] = {
    "max_steps": lambda trainer: trainer.max_steps,
    "num_train_epochs": _num_train_epochs,
    "gradient_accumulation_steps": lambda trainer: trainer.accumulate_grad_batches,
    "max_grad_norm": _max_grad_norm,
    "learning_rate": _learning_rate,
    "per_device_train_batch_size": lambda trainer: _batch_size(trainer.train_dataloader),
    "train_batch_size": lambda trainer: _batch_size(trainer.train_dataloader),
    "per_device_eval_batch_size": lambda trainer: _batch_size(trainer.val_dataloaders),
    "eval_batch_size": lambda trainer: _batch_size(trainer.val_dataloaders),
    "world_size": lambda trainer: trainer.world_size,
    "process_index": lambda trainer: trainer.global_rank,
    "local_process_index": lambda trainer: trainer.local_rank,
    "should_log": lambda trainer: trainer.is_global_zero,
    "should_save": lambda trainer: trainer.is_global_zero,
    "device": lambda trainer: trainer.strategy.root_device,
    # "16-true" has no loss scaler
    "fp16": lambda trainer: trainer.precision == "16-mixed",
    "bf16": lambda trainer: str(trainer.precision).startswith("bf16"),
    "resume_from_checkpoint": lambda trainer: trainer.ckpt_path,
    "dataloader_num_workers": lambda trainer: getattr(trainer.train_dataloader, "num_workers", 0),
    "torch_compile": lambda trainer: is_compiled(None, trainer.lightning_module),
}
"""Settings that are read from the Lightning Trainer, and cannot be given to the bridge."""

BRIDGE_SETTINGS: dict[str, Any] = {
    "output_dir": _output_dir,
    "logging_dir": None,
    "logging_strategy": _logging_strategy,
    "logging_steps": _logging_steps,
    "logging_first_step": False,
    "eval_strategy": _eval_strategy,
    "eval_steps": _eval_steps,
    "eval_delay": 0,
    "save_strategy": _save_strategy,
    "save_steps": 500,
    "save_total_limit": None,
    "metric_for_best_model": _metric_for_best_model,
    "greater_is_better": None,
    "load_best_model_at_end": False,
    "run_name": None,
    "project": "huggingface",
    "trackio_space_id": None,
    "trackio_bucket_id": None,
    "report_to": _report_to,
    "hub_private_repo": None,
    "push_to_hub": False,
    "hub_model_id": None,
    "disable_tqdm": False,
    "include_num_input_tokens_seen": "no",
    "seed": _seed,
}
"""Settings that can be given to the bridge, with their defaults.

A default is a value, or a function that reads it from the Lightning Trainer.
"""

_ALL_SETTINGS: dict[str, Any] = {**BRIDGE_SETTINGS, **TRAINER_SETTINGS}


class BridgeArguments:
    """Show a Lightning Trainer's settings as `TrainingArguments`, to callbacks that read them.

    They cannot be set.

    Settings of Lightning are read from its Trainer at each access, the others are given to the
    bridge.

    Args:
        settings: the settings that the user passed to the bridge; see `BRIDGE_SETTINGS`.

    Raises:
        TypeError: a setting is unknown, or has to be set on the Lightning Trainer.

    Attributes:
        settings: the settings that were passed.
        trainer: the Lightning Trainer; None before the first run.
    """

    loads_models = False
    """A Lightning Trainer never loads the best model at the end, so callbacks do not recommend it.
    """

    settings: dict[str, Any]
    trainer: Trainer | None

    def __init__(self, **settings: Any) -> None:
        for name in settings.keys() - BRIDGE_SETTINGS.keys():
            advice = " Set it on the Lightning Trainer."
            if name not in TRAINER_SETTINGS:
                advice = _advice_for_unknown(name)
            raise TypeError(f"LightningBridge has no setting {name!r}.{advice}")

        metric = settings.get("metric_for_best_model")
        if metric:
            settings["metric_for_best_model"] = as_metric_for_best_model(metric)
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "trainer", None)

    def read_from(self, trainer: Trainer) -> None:
        """Read from this Lightning Trainer from now on."""
        object.__setattr__(self, "trainer", trainer)

    def __getattr__(self, name: str) -> Any:
        # Copies and pickles ask for these before `__init__`.
        if name.startswith("__") or name in ("settings", "trainer"):
            raise AttributeError(name)

        if name in self.settings:
            return self.settings[name]
        if name not in _ALL_SETTINGS:
            raise AttributeError(
                f"The args of a LightningBridge have no {name!r}.{_advice_for_unknown(name)}"
            )
        if name == "greater_is_better":
            return self._greater_is_better()

        default = _ALL_SETTINGS[name]
        if not callable(default):
            return default
        if self.trainer is None:
            return None
        return default(self.trainer)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{name!r} cannot be set on these args: set it on the Lightning Trainer, or pass it to "
            "LightningBridge."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name, devices as text."""
        values: dict[str, Any] = {}
        for name in _ALL_SETTINGS:
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, (int, float, str, list)):
                value = str(value)
            values[name] = value
        return values

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return all settings by name, for tables of hyperparameters.

        Values other than numbers and strings are converted to text.
        """
        values: dict[str, Any] = {}
        for name, value in self.to_dict().items():
            if not isinstance(value, (int, float, str)):
                value = str(value)
            values[name] = value
        return values

    def to_json_string(self) -> str:
        """Return all settings as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def _greater_is_better(self) -> bool | None:
        metric = self.metric_for_best_model
        if metric is None or self.trainer is None:
            return None

        # A callback of Lightning that watches the metric has the direction.
        if "metric_for_best_model" not in self.settings:
            mode = getattr(_monitoring_callback(self.trainer), "mode", None)
            if mode in ("min", "max"):
                return mode == "max"
        return known_direction(metric) != "minimize"


def _advice_for_unknown(name: str) -> str:
    suggestion = did_you_mean(name, _ALL_SETTINGS)
    return f"{suggestion} Valid settings: {', '.join(_ALL_SETTINGS)}."
