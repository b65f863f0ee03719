"""Log throughput and model FLOPs utilization."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ..lightning_modules.common.lengths import length_or_none
from ._log_values import add_to_logs, is_training_log
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments


class ThroughputCallback(TrainerCallback):
    """Logs the speed of the last steps, and the share of the devices' peak. Not in transformers.

    Added to each log of the training, over all processes:

    - `samples_per_second`, `steps_per_second`
    - `tokens_per_second`: with `include_num_input_tokens_seen`.
    - `flops_per_second`: floating point operations, forward and backward, as
      `Trainer.floating_point_ops` estimates them: for models of transformers six for each token and
      parameter outside of the embeddings. Override it for other models.
    - `mfu`: with `peak_flops`, the same as a fraction of the peak of all devices (model FLOPs
      utilization: Chowdhery et al. 2022, PaLM, appendix B).

    Time and steps count from the latest log, evaluation or checkpoint, so the time of evaluations
    and saves is excluded. The device is not synchronized: a log has just fetched the loss anyway.

    Args:
        peak_flops: the peak FLOP/s of one device with the dtype in use, from its data sheet (dense,
            not sparse): `989e12` for an H100 SXM in bfloat16.

    Raises:
        ValueError: `peak_flops` is not above zero.
    """

    adds_to_logs = True
    reads_checkpoints = False

    def __init__(self, peak_flops: float | None = None) -> None:
        if peak_flops is not None and not peak_flops > 0:
            raise ValueError(
                f"peak_flops is {peak_flops!r}, but it must be a number of FLOP/s, such as 312e12, "
                "or None."
            )
        self.peak_flops = peak_flops

        # The clock and the counts of the state since when speed is measured.
        self._start_time = 0.0
        self._start_step = 0
        self._start_epoch = 0.0
        self._start_tokens = 0

        # The step and the `total_flos` of the last log: other events do not update `total_flos`.
        self._last_estimate = (0, 0.0)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Start to measure."""
        self._last_estimate = (state.global_step, state.total_flos)
        self._restart(state)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Exclude the time for evaluating, predicting and saving from the speed."""
        self._restart(state)

    # Typed as Any: on_predict of the base class has a required parameter, `metrics`.
    on_predict: Any = on_evaluate
    on_save = on_evaluate

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        *,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Add the speeds."""
        if not is_training_log(logs):
            return
        flops_per_step = self._estimated_flops_per_step(state)
        steps = state.global_step - self._start_step
        seconds = time.perf_counter() - self._start_time
        if steps > 0 and seconds > 0:
            world_size = getattr(args, "world_size", 1)
            amounts = {
                "samples_per_second": self._samples(args, state, train_dataloader, world_size),
                "steps_per_second": steps,
                "tokens_per_second": state.num_input_tokens_seen - self._start_tokens,
                "flops_per_second": flops_per_step * steps,
            }
            speeds: dict[str, float] = {}
            for name, amount in amounts.items():
                if amount:
                    speeds[name] = _rounded(amount / seconds)

            # Operations are counted over all processes, the peak is that of one device.
            if self.peak_flops is not None and "flops_per_second" in speeds:
                flops_per_device = speeds["flops_per_second"] / world_size
                speeds["mfu"] = _rounded(flops_per_device / self.peak_flops)
            add_to_logs(logs, state, speeds)
        self._restart(state)

    def _restart(self, state: TrainerState) -> None:
        """Measure from here on."""
        self._start_time = time.perf_counter()
        self._start_step = state.global_step
        self._start_epoch = state.epoch or 0.0
        self._start_tokens = state.num_input_tokens_seen

    def _estimated_flops_per_step(self, state: TrainerState) -> float:
        """Return the operations of one step since the last log; 0 without an estimate."""
        last_step, last_flos = self._last_estimate
        self._last_estimate = (state.global_step, state.total_flos)
        return (state.total_flos - last_flos) / max(state.global_step - last_step, 1)

    def _samples(
        self,
        args: TrainingArguments,
        state: TrainerState,
        train_dataloader: object,
        world_size: int,
    ) -> float:
        """Return the samples of all processes since the start; 0 if unknown."""
        micro_batch_of_all = (state.train_batch_size or 0) * world_size
        steps = state.global_step - self._start_step
        micro_batches = steps * getattr(args, "gradient_accumulation_steps", 1)
        full_batches = float(micro_batches * micro_batch_of_all)

        # Batches at the end of an epoch may be smaller, so the fraction of the epoch comes first.
        epochs = (state.epoch or 0.0) - self._start_epoch
        samples = length_or_none(getattr(train_dataloader, "dataset", None))
        batches = length_or_none(train_dataloader)
        if samples and batches and epochs > 0:
            # A loader may leave out the samples that do not fill its last batch.
            if micro_batch_of_all:
                samples = min(samples, batches * micro_batch_of_all)
            # Lightning may leave out batches: `limit_train_batches`.
            return min(epochs * samples, full_batches or math.inf)
        return full_batches


def _rounded(value: float) -> float:
    """Round to six significant digits; more are noise."""
    return float(f"{value:.6g}")
