"""Azure Machine Learning, CodeCarbon, Comet and Flyte."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .availability import is_flyte_deck_standard_available, is_installed, is_switched_on
from .base import LoggerCallback, LogsFirst, PredictionLogger
from .values import config_of, rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)

_COMET_MODES = ("get", "get_or_create", "create")


class AzureMLCallback(LogsFirst):
    """Log numbers to the Azure ML run of the script.

    Works like `transformers.integrations.AzureMLCallback`.

    Metrics keep the names of the logs (`loss`, `eval_loss`). Outside of Azure, azureml prints them.

    Args:
        azureml_run: a run to use instead of the one in the context.

    Raises:
        MissingTrackerError: an ImportError; azureml-core is not installed.
    """

    platform = "azure_ml"

    def __init__(self, azureml_run: Any = None) -> None:
        super().__init__()
        self.azureml_run = azureml_run

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Get the run from the context."""
        self.setup(args, state)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        if self.azureml_run is None:
            azureml = import_module("azureml.core.run")
            self.azureml_run = azureml.Run.get_context()

    def _close_earlier_run(self, state: TrainerState) -> None:
        """Leave the run open: all trials of a search share the run of Azure."""

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        for name, value in self._numbers(logs).items():
            self.azureml_run.log(name, value, description=name)


class CodeCarbonCallback(LoggerCallback):
    """Measure the power and the emissions of a training with CodeCarbon.

    Works like `transformers.integrations.CodeCarbonCallback`, but every training is measured.

    The first process of every machine measures that machine, and writes `emissions.csv` to the
    output folder. `tracker.final_emissions_data` has the figures.

    Environment variables are those of codecarbon (`CODECARBON_LOG_LEVEL`,
    `CODECARBON_MEASURE_POWER_SECS`, ...). With `CODECARBON_COUNTRY_ISO_CODE`, such as "FRA", the
    location of the machine is not looked up over the network.

    Raises:
        MissingTrackerError: an ImportError; codecarbon is not installed.
        RuntimeError: the GPU is from AMD; codecarbon cannot read its power.
    """

    platform = "codecarbon"
    advice = (
        "CODECARBON_COUNTRY_ISO_CODE, such as FRA, avoids the look-up of this machine's location."
    )

    def __init__(self) -> None:
        super().__init__()
        import torch

        if torch.version.hip:
            raise RuntimeError(
                "report_to='codecarbon' cannot read the power of AMD GPUs (ROCm). Remove it from "
                "report_to."
            )
        self._codecarbon: Any = import_module("codecarbon")
        self.tracker: Any = None
        self._is_measuring = False

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Create a tracker."""
        if self.tracker is None and state.is_local_process_zero:
            self.tracker = self._create_tracker(args)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Start the measurement."""
        if not state.is_local_process_zero or self._is_measuring:
            return
        # A tracker that was stopped cannot be started again, so each training has its own.
        if self.tracker is None or self._has_finished:
            self.tracker = self._create_tracker(args)
        self._has_finished = False
        self._is_measuring = True
        self.tracker.start()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *more: Any,
        **kwargs: Any,
    ) -> None:
        """Do nothing: codecarbon measures by itself."""

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Stop the measurement, and write the figures."""
        if self._is_measuring:
            self._has_finished = True
            self._is_measuring = False
            with self._failures_as_warnings("the figures"):
                self.tracker.stop()

    def _create_tracker(self, args: TrainingArguments) -> Any:
        """Return codecarbon's tracker that writes into the output folder."""
        output_dir = str(args.output_dir)
        os.makedirs(output_dir, exist_ok=True)
        tracker_class = self._codecarbon.EmissionsTracker
        if os.environ.get("CODECARBON_COUNTRY_ISO_CODE"):
            tracker_class = self._codecarbon.OfflineEmissionsTracker
        return tracker_class(output_dir=output_dir)


class CometCallback(PredictionLogger):
    """Log to an experiment of Comet.

    Works like `transformers.integrations.CometCallback`, through the public methods of an
    experiment.

    Environment variables, in addition to those of comet_ml itself (`COMET_API_KEY`,
    `COMET_WORKSPACE`, `COMET_OFFLINE_DIRECTORY`, ...):

    - `COMET_MODE`: "get_or_create" (the default), "create" or "get"; the latter two need
      `COMET_EXPERIMENT_KEY`. With any other value nothing is logged.
    - `COMET_START_ONLINE`: 0 or false writes the experiment to an archive on this machine.
    - `COMET_PROJECT_NAME`: the project.
    - `COMET_LOG_ASSETS`: 1 or true uploads the output folder when training ends.

    The experiment stays open when training ends, for later logs; comet_ml closes it at the end of
    the program. Each trial of a search is a separate experiment.

    Raises:
        MissingTrackerError: an ImportError; comet_ml 3.44 or newer is not installed.
    """

    platform = "comet_ml"
    run_variable = "COMET_EXPERIMENT_KEY"
    advice = (
        "COMET_START_ONLINE=0 keeps the experiment on this machine, `comet login` stores a key."
    )

    def __init__(self) -> None:
        super().__init__()
        self._experiment: Any = None  # Any, because comet_ml has no types

    @property
    def run_id(self) -> str | None:
        """Return the key of the experiment."""
        return None if self._experiment is None else self._experiment.get_key()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Upload the output folder with `COMET_LOG_ASSETS`."""
        experiment = self._experiment
        is_upload_enabled = is_switched_on("COMET_LOG_ASSETS") and state.is_world_process_zero
        if experiment is not None and is_upload_enabled:
            with self._failures_as_warnings("the output folder"):
                experiment.log_asset_folder(
                    str(args.output_dir),
                    recursive=True,
                    log_file_name=True,
                    step=state.global_step,
                )
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        mode = os.environ.get("COMET_MODE", "").lower() or None
        if mode is not None and mode not in _COMET_MODES:
            logger.warning(
                "COMET_MODE=%r is not one of %s: nothing is logged to Comet.",
                mode,
                ", ".join(_COMET_MODES),
            )
            return
        if state.is_hyper_param_search:
            mode = "create"

        # Start an experiment, or resume the one of the checkpoint.
        comet_ml = import_module("comet_ml")
        options = {
            "online": None,
            "mode": mode,
            "experiment_config": comet_ml.ExperimentConfig(name=args.run_name),
        }
        resumed_key = self._run_to_resume(state)
        if resumed_key and mode != "create":
            options["experiment_key"] = resumed_key
        self._experiment = comet_ml.start(**options)

        # Log the model and the settings.
        self._experiment.set_model_graph(model)
        settings = {
            "args": args.to_dict(),
            "config": config_of(model),
            "peft_config": getattr(model, "peft_config", None),
        }
        parameters = {name: value for name, value in settings.items() if value}
        self._experiment.log_parameters(parameters, nested_support=True)
        if state.is_hyper_param_search:
            self._experiment.log_optimization(
                optimization_id=state.trial_name, parameters=state.trial_params
            )

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        self._report_prediction(state, logs)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        if self._experiment is not None:
            self._experiment.log_metrics(
                rewrite_logs(metrics), step=state.global_step, epoch=state.epoch
            )

    def _finish(self) -> None:
        if self._experiment is not None:
            self._experiment.end()
            self._experiment = None


class FlyteCallback(LoggerCallback):
    """Store checkpoints in Flyte, and show the logs of a task.

    Works like `transformers.integrations.FlyteCallback`, but only process 0 creates the deck.

    It works inside a Flyte task.

    Args:
        save_log_history: whether to show all logs as a table, a Flyte deck; needs
            flytekitplugins-deck-standard and pandas.
        sync_checkpoints: whether to store the newest checkpoint in Flyte. An interrupted task
            resumes from it with
            `trainer.train(resume_from_checkpoint=current_context().checkpoint.restore())`.

    Raises:
        MissingTrackerError: an ImportError; flytekit is not installed.
    """

    platform = "flyte"

    def __init__(self, save_log_history: bool = True, sync_checkpoints: bool = True) -> None:
        super().__init__()
        can_make_deck = is_flyte_deck_standard_available() and is_installed("pandas")
        if save_log_history and not can_make_deck:
            logger.warning(
                "No deck of the logs is created: that needs "
                "`pip install flytekitplugins-deck-standard pandas`."
            )
            save_log_history = False
        self.cp: Any = import_module("flytekit").current_context().checkpoint
        self.save_log_history = save_log_history
        self.sync_checkpoints = sync_checkpoints

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether checkpoints are uploaded, by `sync_checkpoints`."""
        return self.sync_checkpoints

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        self.cp.save(folder)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Show the logs as a table."""
        if self.save_log_history and state.is_world_process_zero:
            with self._failures_as_warnings("the table of logs"):
                pandas = import_module("pandas")
                flytekit = import_module("flytekit")
                renderer = import_module("flytekitplugins.deck.renderer").TableRenderer()
                table = pandas.DataFrame(state.log_history)
                flytekit.Deck("Log History", renderer.to_html(table))
        self._log_failures()
