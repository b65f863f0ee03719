"""Exponential moving average of the weights."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .base import TrainerCallback
from .state import TrainerControl, TrainerState
from .tensor_states import CALLBACK_STATES_NAME

if TYPE_CHECKING:
    from torch import nn

    from .arguments import CallbackArguments

logger = logging.getLogger(__name__)


class EMACallback(TrainerCallback):
    """No counterpart in transformers: keeps an exponential moving average of the weights.

    After every `update_every`-th step each trained weight's average becomes
    `decay * average + (1 - decay) * weight`. It stays on the device of the weight, in float32 if
    the weight is less precise, and the device is not synchronized. Buffers, such as the statistics
    of batch normalization, are not averaged. The training itself is not changed by a bit.
    Checkpoints hold the average (in `callback_states.pt`), and a resumed training continues with it
    exactly.

    Args:
        decay: share of the average kept at an update, from 0 to below 1.
        warmup: begin with less: at most (1 + n) / (10 + n) at the n-th update, counted from 0, so
            that the first weights do not stay in the average for long.
        update_every: steps between two updates.
        evaluate: evaluations and predictions in the training are those of the average. The weights
            change places for each forward pass in evaluation mode, without being copied.
        at_end: when training ends, the model gets the average, so that `save_model` saves it. With
            `load_best_model_at_end` it is the average of the best checkpoint.

    Raises:
        ValueError: a parameter is out of its range. When training begins: the model is spread over
            processes.
    """

    reads_checkpoints = False

    def __init__(
        self,
        decay: float = 0.999,
        *,
        warmup: bool = True,
        update_every: int = 1,
        evaluate: bool = True,
        at_end: bool = True,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay!r}: it has to be from 0 to below 1.")
        if update_every < 1:
            raise ValueError(f"update_every is {update_every!r}: it has to be 1 or more.")
        self.decay = decay
        self.warmup = warmup
        self.update_every = update_every
        self.evaluate = evaluate
        self.at_end = at_end
        self.updates = 0
        """Updates so far."""
        self.averages: dict[str, Any] = {}
        """The average of each trained weight, by its name in the model."""
        self._weights: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None
        self._swap: _Swap | None = None

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Begin with the weights as they are, or with the average of the checkpoint."""
        self._end_swapping()
        if model is None:
            return
        _require_whole(model)
        self._weights = {
            name: weight for name, weight in model.named_parameters() if _is_averaged(weight)
        }
        self.updates = 0
        self.averages = {name: _precise(weight) for name, weight in self._weights.items()}
        if state.global_step > 0:
            self._resume(state)
        if self.evaluate:
            self._swap = _Swap(model, self._weights, self.averages)

    def on_step_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Update the average."""
        if not self.averages or state.global_step % self.update_every:
            return
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        n = self.updates
        self.updates = self.updates + 1
        decay = min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay
        averages = list(self.averages.values())
        pairs = zip(self._weights.values(), averages, strict=True)
        weights = [weight.detach().to(average.dtype) for weight, average in pairs]
        get_ema_multi_avg_fn(decay)(averages, weights, None)
        if self._swap is not None:
            self._swap.forget()

    def on_train_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Give the average to the model, if that is asked for."""
        self._end_swapping()
        self._resumed = None
        weights = self._weights
        self._weights = {}
        if self.at_end and weights:
            self._take_best(args, state)
            self._copy_to(weights)

    def copy_to(self, model: Any) -> None:
        """Copy the average into a model, which has weights of the same names.

        Raises:
            RuntimeError: training has not begun.
        """
        if not self.averages:
            raise RuntimeError(
                "EMACallback has averages only after a training has begun: call trainer.train() "
                "first."
            )
        self._copy_to(dict(model.named_parameters()))

    @contextlib.contextmanager
    def applied_to(self, model: Any) -> Iterator[None]:
        """Give a model the average inside a `with`, for example to save it, and its own weights
        after it.
        """
        weights = dict(model.named_parameters())
        swap = _Swap(None, {name: weights[name] for name in self.averages}, self.averages)
        swap.change()
        try:
            yield
        finally:
            swap.change()

    def evaluated_weights(self) -> list[tuple[Any, Any]]:
        """Return each weight with its average, where evaluations of this training used it in the
        weight's place.
        """
        if self._swap is None or not self._swap.is_used:
            return []
        return [(weight, self.averages[name]) for name, weight in self._weights.items()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the averages, not copies of them, and the number of
        updates.
        """
        return {"updates": self.updates, "averages": dict(self.averages)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the training begins."""
        self._resumed = state_dict

    def _copy_to(self, weights: dict[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for name, average in self.averages.items():
                weights[name].copy_(average)

    def _resume(self, state: TrainerState) -> None:
        """Go on with the average of a checkpoint."""
        if self._resumed is None:
            logger.warning(
                "EMACallback starts from the present weights: the checkpoint at step %s has no "
                "average.",
                state.global_step,
            )
            return
        self.updates = int(self._resumed["updates"])
        self._fill(self._resumed["averages"])

    def _fill(self, stored: dict[str, Any]) -> None:
        shapes = {name: average.shape for name, average in self.averages.items()}
        stored_shapes = {name: average.shape for name, average in stored.items()}
        wrong = [
            name
            for name in {**shapes, **stored_shapes}
            if shapes.get(name) != stored_shapes.get(name)
        ]
        if wrong:
            raise ValueError(
                "EMACallback: its average in the checkpoint and the model differ in "
                f"{', '.join(wrong[:3])}."
            )
        for name, average in self.averages.items():
            average.copy_(stored[name])

    def _take_best(self, args: CallbackArguments, state: TrainerState) -> None:
        """Take the average of the best checkpoint, where that is what the model is set back to."""
        best = (
            state.best_model_checkpoint if getattr(args, "load_best_model_at_end", False) else None
        )
        path = None if best is None else os.path.join(best, CALLBACK_STATES_NAME)
        if path is None:
            return
        if not os.path.isfile(path):
            logger.warning(
                "%s is missing: the model gets the last average of its weights, not the best.",
                path,
            )
            return
        import torch

        try:
            states = torch.load(path, map_location="cpu", weights_only=True).get(
                type(self).__name__
            )
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ValueError(
                f"{path} is damaged, or holds other objects than states, and is not read."
            ) from error
        if states:
            self._fill(states[0]["averages"])

    def _end_swapping(self) -> None:
        if self._swap is not None:
            self._swap.remove()
            self._swap = None


class _Swap:
    """Swaps averaged weights into a model for each forward pass in evaluation mode.

    Exchanges only the storage behind the parameters, so it takes microseconds and optimizers and
    wrappers keep the same parameter objects. The weights are swapped back even if the forward pass
    fails.
    """

    def __init__(self, model: Any, weights: dict[str, Any], averages: dict[str, Any]) -> None:
        self._model = model
        self._weights = list(weights.values())
        self._averages = list(averages.values())
        self._others: list[Any] | None = None
        self._depth = 0
        self.is_used = False
        """Whether the model was called in evaluation mode; a LightningModule may call its parts
        instead.
        """
        self._hooks: list[Any] = []
        if model is not None:
            before = model.register_forward_pre_hook(self._before)
            self._hooks = [before, model.register_forward_hook(self._after, always_call=True)]

    def __deepcopy__(self, memo: Any) -> _Swap:
        """Return the same object, so that the hooks of a copied model stay without effect."""
        return self

    def change(self) -> None:
        """Exchange the weights; a second time gives them back."""
        if self._others is None:
            pairs = zip(self._averages, self._weights, strict=True)
            self._others = [average.to(weight.dtype) for average, weight in pairs]
        for index, weight in enumerate(self._weights):
            weight.data, self._others[index] = self._others[index], weight.data

    def forget(self) -> None:
        """Note that the averages have changed, and copies of them are no longer good."""
        self._others = None

    def remove(self) -> None:
        """Leave the model alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before(self, module: Any, args: CallbackArguments) -> None:
        if module is self._model and not module.training:
            self._depth += 1
            if self._depth == 1:
                self.is_used = True
                self.change()

    def _after(self, module: Any, args: CallbackArguments, output: Any) -> None:
        if module is self._model and self._depth:
            self._depth -= 1
            if self._depth == 0:
                self.change()


def _is_averaged(weight: Any) -> bool:
    return weight.requires_grad and (weight.is_floating_point() or weight.is_complex())


def _precise(weight: Any) -> Any:
    """Return a copy of a weight, in float32 or a more precise type."""
    import torch

    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)


def _require_whole(model: Any) -> None:
    """Refuse models whose parameters are sharded."""
    for name, weight in model.named_parameters():
        if _is_spread(weight):
            raise ValueError(
                f"EMACallback cannot average {name}, which is spread over processes. Leave it out."
            )


def _is_spread(weight: Any) -> bool:
    return (
        hasattr(weight, "full_tensor")
        or type(weight).__name__ == "FlatParameter"
        or hasattr(weight, "ds_id")
    )
