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
from .._log_values import number_of
from ..state import TrainerControl, TrainerState
from .availability import is_installed, is_tensorboard_available
from .base import LogsFirstCallback
from .values import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class TensorBoardCallback(LogsFirstCallback):
    """Log to files of TensorBoard.

    Works like `transformers.integrations.TensorBoardCallback`, but searches respect the log
    directory.

    Logs are written to `args.logging_dir`. If it is not set, the environment variable
    `TENSORBOARD_LOGGING_DIR` names the directory; otherwise it is `output_dir/runs/<date>_<host>`.
    Each trial of a hyperparameter search has a subfolder with its name. Only process 0 writes. A
    writer is opened when training begins, or at the first log outside of training.

    Args:
        tb_writer: a `torch.utils.tensorboard.SummaryWriter` to use, instead of one that is opened.

    Raises:
        MissingTrackerError: an ImportError; tensorboard is not installed and no writer was passed.
    """

    platform = "tensorboard"

    def __init__(self, tb_writer: Any = None) -> None:
        self.tb_writer = tb_writer
        self._given_writer = tb_writer
        self.logging_dir: str | None = None
        self._first_step: int | None = None
        """In a resumed run, TensorBoard hides earlier logs from this step on."""
        super().__init__()

    @property
    def run_id(self) -> str | None:
        """The name of the folder below `runs` that was created for this training."""
        if not self.logging_dir or self._given_writer is not None:
            return None
        return os.path.basename(self.logging_dir)

    def _available(self) -> bool:
        """Return whether a writer was passed, or tensorboard is installed."""
        return self._given_writer is not None or is_tensorboard_available()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Open a writer, and write the arguments and the model's configuration."""
        if state.is_hyper_param_search:
            self._close_earlier_run(state)
            self.logging_dir = None
        self.setup(args, state, model, **kwargs)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Close the writer; a later log opens one for the same directory."""
        self._finish()
        self._log_failures()

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open a writer, and write the arguments and the model's configuration."""
        writer = self._writer(args, state)
        if writer is None:
            return
        writer.add_text("args", _as_text(args))
        # Only models of some libraries have a configuration.
        config = getattr(model, "config", None)
        if config is not None:
            writer.add_text("model_config", _as_text(config))
        if hasattr(writer, "add_hparams"):
            _add_hparams(writer, args.to_sanitized_dict())

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Write numbers as scalars and strings as text, at `state.global_step`.

        Warns about other values.
        """
        writer = self._writer(args, state)
        if writer is None:
            return
        for name, value in rewrite_logs(logs).items():
            if isinstance(value, str):
                writer.add_text(name, value, state.global_step)
                continue

            # Scalars may be arrays or tensors of one element.
            number = number_of(value, accept_bool=True)
            if number is not None:
                writer.add_scalar(name, number, state.global_step)
                continue
            logger.warning(
                "TensorBoard accepts numbers and strings, so the log %r = %r of type %s is left "
                "out.",
                name,
                value,
                type(value).__name__,
            )
        writer.flush()

    def _finish(self) -> None:
        """Close the writer."""
        if self.tb_writer is not None:
            self.tb_writer.close()
            self.tb_writer = self._given_writer

    def _writer(self, args: TrainingArguments, state: TrainerState) -> Any:
        """Return the writer, which is opened by the first call."""
        if self.tb_writer is not None:
            return self.tb_writer
        resumed_run = self._run_to_resume(state)
        if self.logging_dir is None or resumed_run:
            self.logging_dir = _logging_dir(args, state, resumed_run)

        self._first_step = None
        if resumed_run:
            self._first_step = state.global_step + 1
        self._init_summary_writer(args)
        return self.tb_writer

    def _init_summary_writer(self, args: TrainingArguments) -> None:
        """Open the writer of `logging_dir` as `tb_writer`.

        An override may set a writer of its own, or none to write nothing.
        """
        writer_class = _summary_writer_class()
        self.tb_writer = writer_class(self.logging_dir, purge_step=self._first_step)


def _summary_writer_class() -> Any:
    """Return the `SummaryWriter` of torch, or without tensorboard that of tensorboardX."""
    if not is_installed("tensorboard"):
        return import_module("tensorboardX").SummaryWriter
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter


def _logging_dir(args: TrainingArguments, state: TrainerState, resumed_run: str | None) -> str:
    """Return the directory of the logs.

    Args:
        args: the training arguments.
        state: the state of the training.
        resumed_run: the name of the folder of the training that is resumed.
    """
    chosen = getattr(args, "logging_dir", None) or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if chosen:
        return trial_folder(os.path.expanduser(chosen), state)

    name = resumed_run
    if not name:
        start_time = datetime.now().strftime("%b%d_%H-%M-%S")
        name = f"{start_time}_{socket.gethostname()}"
    # A checkpoint of another person may hold any name. `basename` keeps the logs in the folder.
    directory = os.path.join(str(args.output_dir), "runs", os.path.basename(name))
    return trial_folder(directory, state)


def _as_text(settings: Any) -> str:
    """Return arguments or a configuration as JSON; values without a JSON form become text."""
    if hasattr(settings, "to_json_string"):
        return settings.to_json_string()
    return json.dumps(settings, indent=2, default=str)


def _add_hparams(writer: Any, values: dict[str, Any]) -> None:
    """Write hyperparameters into the run itself; by default torch writes a separate run."""
    if type(writer).__module__.startswith("torch."):
        writer.add_hparams(values, {}, run_name=".")
    else:
        writer.add_hparams(values, {})
