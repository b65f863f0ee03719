"""DVCLive."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .base import LoggerCallback

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class DVCLiveCallback(LoggerCallback):
    """Log to DVCLive.

    Works like `transformers.integrations.DVCLiveCallback`, but keywords reach `dvclive.Live`.

    Each log is a step of DVCLive.

    Args:
        live: a `dvclive.Live` to use; by default one is created.
        log_model: True stores the model at the end as an artifact, from `output_dir/last`, or from
            `output_dir/best` with `load_best_model_at_end`; "all" stores the whole output folder at
            every checkpoint. The default is in the environment variable `HF_DVCLIVE_LOG_MODEL`: 1,
            true, or all.
        **kwargs: for the `dvclive.Live` that is created, such as `dir`.

    Raises:
        MissingTrackerError: an ImportError; dvclive is not installed.
        RuntimeError: `live` is not a `dvclive.Live`.
    """

    platform = "dvclive"

    def __init__(
        self, live: Any = None, log_model: Literal["all"] | bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__()
        self._live_class: Any = import_module("dvclive").Live
        if live is not None and not isinstance(live, self._live_class):
            raise RuntimeError(f"live must be a dvclive.Live, but is a {type(live).__name__}.")
        self.live: Any = live
        self._creates_live = live is None
        self._live_options = kwargs
        self._log_model = _from_environment() if log_model is None else log_model

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether checkpoints are uploaded: with `log_model="all"`."""
        return self._log_model == "all"

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        """Store the whole output folder as an artifact."""
        self.live.log_artifact(str(args.output_dir))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module | None = None,
        processing_class: object = None,
        **kwargs: object,
    ) -> None:
        """Store the model with `log_model=True`, and write the summary."""
        if self._initialized and self._log_model is True:
            name = "best" if args.load_best_model_at_end else "last"
            folder = os.path.join(str(args.output_dir), name)
            with self._failures_as_warnings("the model"):
                self._write_model(state, model, processing_class, folder)
                if state.is_world_process_zero:
                    self.live.log_artifact(folder, name=name, type="model", copy=True)

        # The user's `live` is ended, too, as in transformers.
        if self._initialized and state.is_world_process_zero:
            with self._failures_as_warnings("the end of the run"):
                self.live.end()
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Create a `Live` if none was passed, and log the arguments."""
        if self.live is None:
            self.live = self._live_class(**self._live_options)
        self.live.log_params(args.to_dict())

    def _finish(self) -> None:
        """Forget the `Live` that was created, so that the next training creates another one."""
        if self._creates_live:
            self.live = None

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log each value that DVCLive accepts, and advance its step."""
        # DVCLive has its own check of values, and its own form of names.
        could_log = import_module("dvclive.plots").Metric.could_log
        standardize_metric_name = import_module("dvclive.utils").standardize_metric_name
        for name, value in logs.items():
            if could_log(value):
                self.live.log_metric(standardize_metric_name(name, "dvclive.huggingface"), value)
            else:
                logger.warning(
                    "DVCLive accepts only numbers, so the log %r of type %s is left out.",
                    name,
                    type(value).__name__,
                )
        self.live.next_step()


def _from_environment() -> Literal["all"] | bool:
    """Return the value of `log_model` in the environment."""
    variable = "HF_DVCLIVE_LOG_MODEL"
    if os.environ.get(variable, "").strip().lower() == "all":
        return "all"
    return is_switched_on(variable)
