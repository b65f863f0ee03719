"""TensorBoard."""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._files import trial_folder
from ..state import TrainerControl, TrainerState
from .availability import is_installed, is_tensorboard_available
from .base import LoggerCallback
from .values import number, rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)


class TensorBoardCallback(LoggerCallback):
    """As `transformers.integrations.TensorBoardCallback`, but a log directory that was asked for is
    kept in a search.

    The logs go to `args.logging_dir`, else to the environment variable `TENSORBOARD_LOGGING_DIR`,
    else to `output_dir/runs/<date>_<host>`; each trial of a hyperparameter search to a subfolder of
    its name. Only the first process of all writes. A writer is opened when training begins, or at
    the first log outside of training.

    Args:
        tb_writer: a `torch.utils.tensorboard.SummaryWriter` to use instead.

    Raises:
        MissingTrackerError: an ImportError; tensorboard is not installed and no writer was given.
    """

    platform = "tensorboard"

    def __init__(self, tb_writer: Any = None) -> None:
        self.tb_writer = tb_writer
        self._given_writer = tb_writer
        self.logging_dir: str | None = None
        super().__init__()

    @property
    def run_id(self) -> str | None:
        """Return the name of the folder below `runs` that was made for this training."""
        return (
            os.path.basename(self.logging_dir)
            if self.logging_dir and self._given_writer is None
            else None
        )

    def _available(self) -> bool:
        return self._given_writer is not None or is_tensorboard_available()

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Open a writer and note the arguments, as text and as hyperparameters, and the model's
        configuration.
        """
        if state.is_hyper_param_search:
            self._leave(state)
            self.logging_dir = None
        self.setup(args, state, model, **kwargs)

    def on_train_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Close the writer; a later log opens one on the same directory."""
        self._finish()
        self._warn_what_is_lost()

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        writer = self._writer(args, state)
        writer.add_text("args", _as_text(args))
        config = getattr(model, "config", None)
        if config is not None:
            writer.add_text("model_config", _as_text(config))
        if hasattr(writer, "add_hparams"):
            _add_hparams(writer, args.to_sanitized_dict())

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Write numbers as scalars and strings as text, at `state.global_step`; warn about
        anything else.
        """
        writer = self._writer(args, state)
        for name, value in rewrite_logs(logs).items():
            if isinstance(value, str):
                writer.add_text(name, value, state.global_step)
            elif (plain := number(value)) is not None:
                writer.add_scalar(name, plain, state.global_step)
            else:
                logger.warning(
                    "TensorBoard shows numbers and strings, so the log %r = %r of type %s is left "
                    "out.",
                    name,
                    value,
                    type(value).__name__,
                )
        writer.flush()

    def _finish(self) -> None:
        if self.tb_writer is not None:
            self.tb_writer.close()
            self.tb_writer = self._given_writer

    def _writer(self, args: CallbackArguments, state: TrainerState) -> Any:
        if self.tb_writer is None:
            resumed = self._run_to_resume(state)
            if self.logging_dir is None or resumed:
                self.logging_dir = _logging_dir(args, state, resumed)
            purged = {"purge_step": state.global_step + 1} if resumed else {}
            self.tb_writer = _writer_class()(self.logging_dir, **purged)
        return self.tb_writer


def _writer_class() -> Any:
    if not is_installed("tensorboard"):
        return import_module("tensorboardX").SummaryWriter
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter


def _logging_dir(args: CallbackArguments, state: TrainerState, resumed: str | None) -> str:
    asked = getattr(args, "logging_dir", None) or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if asked:
        directory = os.path.expanduser(asked)
    else:
        started = datetime.now().strftime("%b%d_%H-%M-%S")
        name = os.path.basename(resumed or f"{started}_{socket.gethostname()}")
        directory = os.path.join(args.output_dir, "runs", name)
    return trial_folder(directory, state)


def _as_text(described: Any) -> str:
    """Return arguments or a configuration as JSON, with `str` for values that have no JSON form."""
    if hasattr(described, "to_json_string"):
        return described.to_json_string()
    return json.dumps(described, indent=2, default=str)


def _add_hparams(writer: Any, values: dict[str, Any]) -> None:
    """Write hyperparameters into the run itself; torch would make a separate run for them."""
    if type(writer).__module__.startswith("torch."):
        writer.add_hparams(values, {}, run_name=".")
    else:
        writer.add_hparams(values, {})
