"""ClearML."""

from __future__ import annotations

import os
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .base import LoggerCallback
from .values import SUMMARY_NAMES, config_of, flattened, group_and_metric

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


_SINGLE_VALUES = (*SUMMARY_NAMES, "epoch")
"""Names of logs that are single values of a task, and not curves."""


class ClearMLCallback(LoggerCallback):
    """Log to a task of ClearML.

    Works like `transformers.integrations.ClearMLCallback`, but a closed task is reopened for later
    logs.

    An existing task is used, and left open; the names of a second training in it end with "_2" and
    so on. Otherwise a task is created, and closed when training ends. Later logs are added to it.

    Arguments and model configuration are in the task under "Transformers" and "Model
    Configuration". When the task runs on an agent, the values set in the ClearML interface apply if
    the switches `_ignore_hparams_ui_overrides_` and `_ignore_model_config_ui_overrides_` are false
    there.

    Environment variables:

    - `CLEARML_PROJECT`: the project, by default "HuggingFace Transformers".
    - `CLEARML_TASK`: the name of the task, by default "Trainer".
    - `CLEARML_LOG_MODEL`: whether checkpoints are uploaded as models, up to `save_total_limit` of
      them. By default they are for a task that was created here, not for an existing one.

    Raises:
        MissingTrackerError: an ImportError; clearml is not installed.
    """

    platform = "clearml"
    advice = (
        "CLEARML_OFFLINE_MODE=1 keeps the task on this machine, `clearml-init` stores credentials."
    )

    _training_counts: ClassVar[dict[str, int]] = {}
    """The number of trainings in each task, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self._clearml: Any = import_module("clearml")
        self._clearml_task: Any = None
        self._task_id: str | None = None
        # Only a task that was created here is closed when training ends.
        self.ends_with_training = False
        self._name_suffix = ""
        """Appended to the names of a later training in the same task."""
        self._uploaded_models: list[Any] = []

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether checkpoints are uploaded, by `CLEARML_LOG_MODEL`."""
        if self._initialized:
            creates_task = self.ends_with_training
        else:
            creates_task = self._clearml.Task.current_task() is None
        return is_switched_on("CLEARML_LOG_MODEL", default=str(creates_task))

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        """Upload the checkpoint as an output model of the task."""
        folder_name = os.path.basename(folder)
        name = folder_name + self._name_suffix
        model = self._clearml.OutputModel(task=self._clearml_task, name=name)
        model.connect(task=self._clearml_task, name=name)
        model.update_weights_package(
            weights_path=folder,
            target_filename=folder_name,
            iteration=state.global_step,
            auto_delete_file=False,
        )
        self._uploaded_models.append(model)

        # Remove the oldest uploads, as `save_total_limit` does with checkpoints.
        while args.save_total_limit and args.save_total_limit < len(self._uploaded_models):
            self._clearml.model.Model.remove(
                self._uploaded_models.pop(0),
                delete_weights_file=True,
                force=True,
                raise_on_errors=True,
            )

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Use the current task, or create one; send arguments and model configuration."""
        self._uploaded_models = []
        task_class = self._clearml.Task
        self._clearml_task = task_class.current_task()
        creates_task = self._clearml_task is None
        if creates_task:
            self._clearml_task = self._create_task(state)
        task_id = str(self._clearml_task.id)
        self._task_id = task_id

        count = self._training_counts.get(task_id, 0) + 1
        self._training_counts[task_id] = count
        self._name_suffix = "" if count == 1 else f"_{count}"

        # If the task runs on an agent, the agent closes it.
        self.ends_with_training = creates_task and task_class.running_locally()

        self._connect_arguments(args)
        if config_of(model):
            self._connect_config(model)

    def _create_task(self, state: TrainerState, **options: object) -> Any:
        """Return a new task; with the option `continue_last_task` an earlier one is reopened."""
        name = os.environ.get("CLEARML_TASK", "Trainer")
        if state.trial_name is not None:
            name = f"{name} {state.trial_name}"
        return self._clearml.Task.init(
            project_name=os.environ.get("CLEARML_PROJECT", "HuggingFace Transformers"),
            task_name=name,
            auto_connect_frameworks={"tensorboard": False, "pytorch": False},
            output_uri=True,
            **options,
        )

    def _connect_arguments(self, args: TrainingArguments) -> None:
        """Send the training arguments, or set them to the values of the ClearML interface."""
        section = f"Transformers{self._name_suffix}"
        if self._is_overridden(f"{section}/_ignore_hparams_ui_overrides_"):
            self._clearml_task.connect(args, section)
            return
        values: dict[str, Any] = {}
        for field in fields(args):
            if field.init and not field.name.endswith("_token"):
                values[field.name] = getattr(args, field.name)
        parameters: dict[str, str] = {}
        for name, value in flattened(values, "/").items():
            parameters[f"{section}/{name}"] = str(value)
        self._clearml_task.update_parameters(parameters)

    def _connect_config(self, model: Any) -> None:
        """Send the model configuration, or set it to that of the ClearML interface."""
        section = f"Model Configuration{self._name_suffix}"
        switch = f"Transformers{self._name_suffix}/_ignore_model_config_ui_overrides_"
        if self._is_overridden(switch):
            values = self._clearml_task.get_configuration_object_as_dict(section)
            model.config = model.config.from_dict(values)
            return
        self._clearml_task.set_configuration_object(
            name=section,
            config_dict=config_of(model),
            description="The configuration of the model.",
        )

    def _is_overridden(self, switch: str) -> bool:
        """Return whether the values set in the ClearML interface apply.

        They can only apply on an agent. A local task creates the switch in the interface.

        Args:
            switch: the name of the parameter of the task that disables them.
        """
        if not self._clearml.Task.running_locally():
            return not self._clearml_task.get_parameter(switch, default=True, cast=True)
        self._clearml_task.set_parameter(
            name=switch,
            value=True,
            value_type=bool,
            description=(
                "When the task runs on an agent: False uses the values that are set here, True "
                "those of the script."
            ),
        )
        return False

    def on_log(  # pyright: ignore[reportIncompatibleMethodOverride] - the order of transformers
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        processing_class: Any = None,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Send the logs; a subclass may pass them by position, as in transformers."""
        kwargs["processing_class"] = processing_class
        super().on_log(args, state, control, model=model, logs=logs, **kwargs)

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log numbers as single values or as points of curves."""
        # A closed task is reopened for a later log.
        if self._has_finished:
            task = self._create_task(state, continue_last_task=self._task_id)
            try:
                self._send(task.get_logger(), state, logs)
            finally:
                task.close()
        else:
            self._send(self._clearml_task.get_logger(), state, logs)

    def _send(self, log: Any, state: TrainerState, logs: dict[str, Any]) -> None:
        """Send logs to a logger of ClearML."""
        for name, number in self._numbers(logs).items():
            if name in _SINGLE_VALUES:
                log.report_single_value(name=name + self._name_suffix, value=number)
                continue
            group, metric = group_and_metric(name)
            log.report_scalar(
                title=group + self._name_suffix,
                series=metric,
                value=number,
                iteration=state.global_step,
            )

    def _finish(self) -> None:
        """Close the task, if it was created here."""
        if self.ends_with_training and self._clearml_task is not None:
            self._clearml_task.close()
        self._clearml_task = None
