"""ClearML."""

from __future__ import annotations

import os
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..state import TrainerState
from .availability import is_switched_on
from .base import LoggerCallback
from .values import SUMMARY, config_of, flattened

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import CallbackArguments

_ONCE = (*SUMMARY, "epoch")


class ClearMLCallback(LoggerCallback):
    """As `transformers.integrations.ClearMLCallback`, but a task that was closed is never written
    to.

    A task that exists is used, and left open; a further training in it has "_2", "_3" and so on
    after its names. Else a task is made, and closed when training ends. What is logged after that
    goes to it again.

    Arguments and model configuration appear in the task under "Transformers" and "Model
    Configuration". When the task runs on an agent, they are those of the interface where its
    switches `_ignore_hparams_ui_overrides_` and `_ignore_model_config_ui_overrides_` were set to
    false.

    Environment variables:

    - `CLEARML_PROJECT`: the project, by default "HuggingFace Transformers".
    - `CLEARML_TASK`: the name of the task, by default "Trainer".
    - `CLEARML_LOG_MODEL`: whether checkpoints are uploaded as models, up to `save_total_limit` of
      them. By default they are for a task that was made here, not for one that exists.

    Raises:
        MissingTrackerError: an ImportError; clearml is not installed.
    """

    platform = "clearml"
    advice = (
        "CLEARML_OFFLINE_MODE=1 keeps the task on this machine, `clearml-init` stores credentials."
    )

    _trainings_of: ClassVar[dict[str, int]] = {}
    """Number of trainings in each task, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self._clearml: Any = import_module("clearml")
        self._clearml_task: Any = None
        self._task_id: str | None = None
        self.ends_with_training = False  # True for a task that was made here
        self._suffix = ""
        self._checkpoints_saved: list[Any] = []

    @property
    def uploads_checkpoints(self) -> bool:
        """With `CLEARML_LOG_MODEL`, and by default in a task that is made here."""
        made_here = (
            self.ends_with_training
            if self._initialized
            else self._clearml.Task.current_task() is None
        )
        return is_switched_on("CLEARML_LOG_MODEL", default=str(made_here))

    def _upload(self, args: CallbackArguments, state: TrainerState, folder: str) -> None:
        base = os.path.basename(folder)
        name = base + self._suffix
        model = self._clearml.OutputModel(task=self._clearml_task, name=name)
        model.connect(task=self._clearml_task, name=name)
        model.update_weights_package(
            weights_path=folder,
            target_filename=base,
            iteration=state.global_step,
            auto_delete_file=False,
        )
        self._checkpoints_saved.append(model)
        while args.save_total_limit and args.save_total_limit < len(self._checkpoints_saved):
            self._clearml.model.Model.remove(
                self._checkpoints_saved.pop(0),
                delete_weights_file=True,
                force=True,
                raise_on_errors=True,
            )

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        self._checkpoints_saved = []
        task_class = self._clearml.Task
        self._clearml_task = task_class.current_task()
        made_here = self._clearml_task is None
        if made_here:
            self._clearml_task = self._make_task(state)
        task_id = self._task_id = str(self._clearml_task.id)
        count = self._trainings_of[task_id] = self._trainings_of.get(task_id, 0) + 1
        self._suffix = "" if count == 1 else f"_{count}"
        # an agent closes its task itself
        self.ends_with_training = made_here and task_class.running_locally()
        self._connect_arguments(args)
        if config_of(model):
            self._connect_config(model)

    def _make_task(self, state: TrainerState, **more: Any) -> Any:
        name = os.environ.get("CLEARML_TASK", "Trainer")
        return self._clearml.Task.init(
            project_name=os.environ.get("CLEARML_PROJECT", "HuggingFace Transformers"),
            task_name=name if state.trial_name is None else f"{name} {state.trial_name}",
            auto_connect_frameworks={"tensorboard": False, "pytorch": False},
            output_uri=True,
            **more,
        )

    def _connect_arguments(self, args: CallbackArguments) -> None:
        section = f"Transformers{self._suffix}"
        if self._is_overridden(f"{section}/_ignore_hparams_ui_overrides_"):
            self._clearml_task.connect(args, section)
            return
        values: dict[str, Any] = {}
        for field in fields(cast(Any, args)):  # TrainingArguments are a dataclass
            if field.init and not field.name.endswith("_token"):
                values[field.name] = getattr(args, field.name)
        plain = {f"{section}/{name}": str(value) for name, value in flattened(values, "/").items()}
        self._clearml_task.update_parameters(plain)

    def _connect_config(self, model: Any) -> None:
        section = f"Model Configuration{self._suffix}"
        if self._is_overridden(f"Transformers{self._suffix}/_ignore_model_config_ui_overrides_"):
            model.config = model.config.from_dict(
                self._clearml_task.get_configuration_object_as_dict(section)
            )
            return
        self._clearml_task.set_configuration_object(
            name=section,
            config_dict=config_of(model),
            description="The configuration of the model.",
        )

    def _is_overridden(self, switch: str) -> bool:
        """Return whether values set in the ClearML interface apply; create the switch for it in
        a local task.
        """
        if not self._clearml.Task.running_locally():
            return not self._clearml_task.get_parameter(switch, default=True, cast=True)
        self._clearml_task.set_parameter(
            name=switch,
            value=True,
            value_type=bool,
            description=(
                "False takes what is set here when the task runs on an agent; True, what its "
                "script says."
            ),
        )
        return False

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        if self._over:
            task = self._make_task(state, continue_last_task=self._task_id)
            try:
                self._send(task.get_logger(), state, logs)
            finally:
                task.close()
        else:
            self._send(self._clearml_task.get_logger(), state, logs)

    def _send(self, log: Any, state: TrainerState, logs: dict[str, Any]) -> None:
        for name, plain in self._numbers(logs).items():
            group, separator, rest = name.partition("_")
            if name in _ONCE:
                log.report_single_value(name=name + self._suffix, value=plain)
            else:
                title, series = (
                    (group, rest) if separator and group in ("eval", "test") else ("train", name)
                )
                log.report_scalar(
                    title=title + self._suffix,
                    series=series,
                    value=plain,
                    iteration=state.global_step,
                )

    def _finish(self) -> None:
        if self.ends_with_training and self._clearml_task is not None:
            self._clearml_task.close()
        self._clearml_task = None
