"""Showing how training goes: a live bar, or plain lines."""

from __future__ import annotations

import time
from typing import Any

from .base import TrainerCallback
from .state import TrainerControl, TrainerState

_SHOWN_BESIDE_THE_BAR = {"loss": "loss", "eval_loss": "eval_loss", "learning_rate": "lr"}


class ProgressCallback(TrainerCallback):
    """As `transformers.ProgressCallback`, but with the last losses, learning rate and speed beside the bar.

    Only the first process of all shows anything. Speed is in tokens per second where input tokens are counted, else
    in samples per second; it leaves out evaluation and saving.

    Args:
        max_str_len: a logged string longer than this is not written out.
    """

    reads_checkpoints = False

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.current_step = 0
        self._beside: dict[str, str] = {}
        self._speed = _Speed()

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Open the bar, at the step from which training resumes."""
        self._close_training_bar()
        self._beside = {}
        if state.is_world_process_zero:
            self._open_training_bar(state)
        self._speed.restart(state)

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Move the bar to the present step."""
        if not state.is_world_process_zero:
            return
        bar = self.training_bar
        if bar is None:  # added in the middle of training
            bar = self._open_training_bar(state)
        bar.update(state.global_step - self.current_step)
        self.current_step = state.global_step

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> TrainerControl | None:
        """Move a second bar, if the number of batches is known."""
        if not state.is_world_process_zero:
            return
        if self.prediction_bar is None:
            batches = _length(eval_dataloader)
            if batches is None:
                return
            self.prediction_bar = _tqdm(total=batches, leave=self.training_bar is None)
        self.prediction_bar.update(1)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Close the second bar."""
        self._close_prediction_bar()
        self._speed.restart(state)

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> TrainerControl | None:
        """Close the second bar."""
        self._close_prediction_bar()
        self._speed.restart(state)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl | None:
        """Keep the time for saving out of the speed."""
        self._speed.restart(state)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> TrainerControl | None:
        """Write the logs above the bar, and the most wanted ones beside it."""
        if self.training_bar is None or not logs:
            return
        self._beside |= {
            label: f"{logs[key]:.4g}" for key, label in _SHOWN_BESIDE_THE_BAR.items() if _is_number(logs, key)
        }
        self._beside |= self._speed.measure(args, state)
        self.training_bar.set_postfix(self._beside, refresh=False)
        self.training_bar.write(str(_readable(logs, self.max_str_len)))

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Close the bar and leave it on the screen."""
        self._close_training_bar()

    def _open_training_bar(self, state: TrainerState) -> Any:
        self.current_step = state.global_step
        self.training_bar = _tqdm(total=state.max_steps or None, initial=state.global_step)
        return self.training_bar

    def _close_training_bar(self) -> None:
        if self.training_bar is not None:
            self.training_bar.close()
            self.training_bar = None

    def _close_prediction_bar(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
            self.prediction_bar = None


class PrinterCallback(TrainerCallback):
    """As `transformers.PrinterCallback`: prints each log as one line, in the first process of each machine."""

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> TrainerControl | None:
        """Print the logs, floats with four digits."""
        if state.is_local_process_zero and logs:
            print(_readable(logs))


class _Speed:
    """Measures tokens or samples per second between two logs."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._steps = 0
        self._tokens = 0

    def restart(self, state: TrainerState) -> None:
        """Count from here on."""
        self._since = time.perf_counter()
        self._steps = state.global_step
        self._tokens = state.num_input_tokens_seen

    def measure(self, args: Any, state: TrainerState) -> dict[str, str]:
        """Return what is to be shown, nothing if no step was done, and count from here on."""
        seconds = 0.0 if self._since is None else time.perf_counter() - self._since
        steps, tokens = state.global_step - self._steps, state.num_input_tokens_seen - self._tokens
        self.restart(state)
        if seconds <= 0 or steps <= 0:
            return {}
        if tokens > 0:
            return {"tokens/s": f"{tokens / seconds:.4g}"}
        per_step = (state.train_batch_size or 0) * getattr(args, "gradient_accumulation_steps", 1)
        samples = steps * per_step * getattr(args, "world_size", 1)
        return {"samples/s": f"{samples / seconds:.4g}"} if samples else {}


def _tqdm(**options: Any) -> Any:
    """Open a bar of tqdm, which is imported only here."""
    from tqdm.auto import tqdm

    return tqdm(dynamic_ncols=True, **options)


def _length(dataloader: Any) -> int | None:
    """Return the number of batches, or `None` where it is not known."""
    try:
        return len(dataloader)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def _is_number(logs: dict[str, Any], key: str) -> bool:
    return isinstance(logs.get(key), (int, float))


def _readable(logs: dict[str, Any], max_str_len: int | None = None) -> dict[str, Any]:
    """Return a copy for the screen: floats shortened, long strings replaced, the operation count left out."""
    return {key: _short(value, max_str_len) for key, value in logs.items() if key != "total_flos"}


def _short(value: Any, max_str_len: int | None) -> Any:
    if isinstance(value, float):
        return f"{value:.4g}"
    if max_str_len is not None and isinstance(value, str) and len(value) > max_str_len:
        return f"[a string of {len(value)} characters; max_str_len={max_str_len} hides it]"
    return value
