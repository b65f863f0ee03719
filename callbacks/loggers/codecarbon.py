"""CodeCarbon."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .base import LoggerCallback

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


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
