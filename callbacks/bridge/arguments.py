"""Present the settings of a Lightning Trainer as `args` of callbacks, under the documented
names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from ...lightning_modules.common.metric_directions import known_direction
from ...lightning_modules.common.suggestions import did_you_mean
from .._work import is_compiled
from .reports import as_metric_for_best_model


def _epochs(trainer: Any) -> float:
    return trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else 0


def _batch_size(loader: Any) -> int | None:
    return getattr(loader, "batch_size", None)


def only_one(loaders: Any) -> Any:
    """Return the loader of a list of one, and anything else unchanged."""
    return loaders[0] if isinstance(loaders, (list, tuple)) and len(loaders) == 1 else loaders


def _learning_rate(trainer: Any) -> float | None:
    if not trainer.optimizers:
        return None
    group = trainer.optimizers[0].param_groups[0]
    return float(group.get("initial_lr", group["lr"]))


def _precision(name: str) -> Callable[[Any], bool]:
    return lambda trainer: str(trainer.precision).startswith(name)


OF_THE_TRAINER: dict[str, Callable[[Any], Any]] = {
    "max_steps": lambda trainer: trainer.max_steps,
    "num_train_epochs": _epochs,
    "gradient_accumulation_steps": lambda trainer: trainer.accumulate_grad_batches,
    "max_grad_norm": lambda trainer: trainer.gradient_clip_val or 0.0,
    "learning_rate": _learning_rate,
    "per_device_train_batch_size": lambda trainer: _batch_size(trainer.train_dataloader),
    "train_batch_size": lambda trainer: _batch_size(trainer.train_dataloader),
    "per_device_eval_batch_size": lambda trainer: _batch_size(only_one(trainer.val_dataloaders)),
    "eval_batch_size": lambda trainer: _batch_size(only_one(trainer.val_dataloaders)),
    "world_size": lambda trainer: trainer.world_size,
    "process_index": lambda trainer: trainer.global_rank,
    "local_process_index": lambda trainer: trainer.local_rank,
    "should_log": lambda trainer: trainer.is_global_zero,
    "should_save": lambda trainer: trainer.is_global_zero,
    "device": lambda trainer: trainer.strategy.root_device,
    "fp16": _precision("16"),
    "bf16": _precision("bf16"),
    "resume_from_checkpoint": lambda trainer: trainer.ckpt_path,
    "dataloader_num_workers": lambda trainer: getattr(trainer.train_dataloader, "num_workers", 0),
    "torch_compile": lambda trainer: is_compiled(None, trainer.lightning_module),
}
"""Settings that are the Lightning Trainer's alone."""


def _output_dir(trainer: Any) -> str:
    checkpoint = trainer.checkpoint_callback
    return str(getattr(checkpoint, "dirpath", None) or trainer.default_root_dir)


def _eval_strategy(trainer: Any) -> str:
    if not trainer.enable_validation:
        return "no"
    return (
        "epoch"
        if trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch
        else "steps"
    )


def _monitor(trainer: Any) -> Any:
    watching = (trainer.checkpoint_callback, trainer.early_stopping_callback)
    return next((one for one in watching if getattr(one, "monitor", None)), None)


def _metric(trainer: Any) -> str | None:
    return as_metric_for_best_model(getattr(_monitor(trainer), "monitor", None))


def _eval_steps(trainer: Any) -> int | None:
    interval = trainer.val_check_interval
    return interval if isinstance(interval, int) else None


SETTINGS: dict[str, Any] = {
    "output_dir": _output_dir,
    "logging_dir": None,
    "logging_strategy": lambda trainer: "steps" if trainer.log_every_n_steps else "no",
    "logging_steps": lambda trainer: trainer.log_every_n_steps,
    "logging_first_step": False,
    "eval_strategy": _eval_strategy,
    "eval_steps": _eval_steps,
    "eval_delay": 0,
    "save_strategy": lambda trainer: "epoch" if trainer.checkpoint_callbacks else "no",
    "save_steps": 500,
    "save_total_limit": None,
    "metric_for_best_model": _metric,
    "greater_is_better": None,
    "load_best_model_at_end": False,
    "run_name": None,
    "project": "huggingface",
    "trackio_space_id": None,
    "trackio_bucket_id": None,
    "report_to": lambda trainer: [],
    "hub_private_repo": None,
    "push_to_hub": False,
    "hub_model_id": None,
    "disable_tqdm": False,
    "include_num_input_tokens_seen": "no",
    "seed": lambda trainer: int(os.environ.get("PL_GLOBAL_SEED", 42)),
}
"""Settings that may be given to the bridge, with their values otherwise, or functions that read
them.
"""

_KNOWN: dict[str, Any] = {**SETTINGS, **OF_THE_TRAINER}


class BridgeArguments:
    """As `transformers.TrainingArguments` for callbacks that read them: documented names, to read
    only.

    Settings of Lightning are read from its Trainer at each access; the others are given to the
    bridge.

    Args:
        given: settings of the bridge's user; see `SETTINGS`.

    Raises:
        TypeError: a setting is the Lightning Trainer's, or unknown.
    """

    loads_models = False
    """False: a Lightning Trainer loads no best model at the end, so callbacks do not advise on
    it.
    """

    def __init__(self, **given: Any) -> None:
        for name in given.keys() - SETTINGS.keys():
            advice = " Set it on the Lightning Trainer." if name in OF_THE_TRAINER else _hint(name)
            raise TypeError(f"LightningBridge has no setting {name!r}.{advice}")
        if given.get("metric_for_best_model"):
            given["metric_for_best_model"] = as_metric_for_best_model(
                given["metric_for_best_model"]
            )
        object.__setattr__(self, "given", given)
        object.__setattr__(self, "trainer", None)

    def of(self, trainer: Any) -> BridgeArguments:
        """Read from this Lightning Trainer from now on; returns itself."""
        object.__setattr__(self, "trainer", trainer)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("given", "trainer"):
            raise AttributeError(name)
        if name in self.given:
            return self.given[name]
        if name not in _KNOWN:
            raise AttributeError(f"The args of a LightningBridge have no {name!r}.{_hint(name)}")
        if name == "greater_is_better":
            return self._greater_is_better()
        setting = _KNOWN[name]
        if not callable(setting):
            return setting
        return None if self.trainer is None else setting(self.trainer)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name!r} of these args is the Lightning Trainer's: set it there, or on the bridge."
        )

    def to_dict(self) -> dict[str, Any]:
        """As `transformers.TrainingArguments.to_dict`: all settings, devices as text."""
        values = {name: getattr(self, name) for name in _KNOWN}
        return {name: value if _is_plain(value) else str(value) for name, value in values.items()}

    def to_sanitized_dict(self) -> dict[str, Any]:
        """As `transformers.TrainingArguments.to_sanitized_dict`: what hyperparameter tables
        take, the rest as text.
        """
        values = self.to_dict()
        return {
            name: v if isinstance(v, (bool, int, float, str)) else str(v)
            for name, v in values.items()
        }

    def to_json_string(self) -> str:
        """As `transformers.TrainingArguments.to_json_string`."""
        return json.dumps(self.to_dict(), indent=2)

    def _greater_is_better(self) -> bool | None:
        name = self.metric_for_best_model
        if name is None or self.trainer is None:
            return None
        monitor = _monitor(self.trainer)
        if "metric_for_best_model" not in self.given and getattr(monitor, "mode", None) in (
            "min",
            "max",
        ):
            return monitor.mode == "max"
        return known_direction(name) != "minimize"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, list))


def _hint(name: str) -> str:
    return f"{did_you_mean(name, _KNOWN)} There are: {', '.join(_KNOWN)}."
