"""CodeCarbon: what a training emits."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ..state import TrainerControl, TrainerState
from .base import LoggerCallback


class CodeCarbonCallback(LoggerCallback):
    """As `transformers.integrations.CodeCarbonCallback`, but every training is measured, not the first one only.

    Writes `emissions.csv` to the output folder, on the first process of every machine, as each machine has its own
    power. `tracker.final_emissions_data` has the figures.

    Environment variables are those of codecarbon (`CODECARBON_LOG_LEVEL`, `CODECARBON_MEASURE_POWER_SECS`, ...). With
    `CODECARBON_COUNTRY_ISO_CODE`, such as "FRA", the network is not asked where the machine stands.

    Raises:
        MissingTrackerError: an ImportError; codecarbon is not installed.
        RuntimeError: the GPU is one of AMD, which codecarbon cannot read.
    """

    platform = "codecarbon"
    advice = "CODECARBON_COUNTRY_ISO_CODE, such as FRA, spares the question where this machine stands."

    def __init__(self) -> None:
        super().__init__()
        import torch

        if torch.version.hip:
            raise RuntimeError(
                "CodeCarbonCallback (report_to='codecarbon') cannot read the power of GPUs of AMD (ROCm). Take the "
                "name out of report_to."
            )
        self._codecarbon: Any = import_module("codecarbon")
        self.tracker: Any = None
        self._measuring = False

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Make a tracker."""
        if self.tracker is None and state.is_local_process_zero:
            self.tracker = self._make_tracker(args)

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Begin to measure."""
        if not state.is_local_process_zero or self._measuring:
            return
        if self.tracker is None or self._over:
            self.tracker = self._make_tracker(args)  # one that was stopped cannot start again
        self._over, self._measuring = False, True
        self.tracker.start()

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Nothing: it measures by itself."""

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop, and write the figures."""
        if self._measuring:
            self._over, self._measuring = True, False
            with self._training_goes_on("the figures"):
                self.tracker.stop()

    def _make_tracker(self, args: Any) -> Any:
        os.makedirs(args.output_dir, exist_ok=True)
        if os.environ.get("CODECARBON_COUNTRY_ISO_CODE"):
            return self._codecarbon.OfflineEmissionsTracker(output_dir=str(args.output_dir))
        return self._codecarbon.EmissionsTracker(output_dir=str(args.output_dir))
