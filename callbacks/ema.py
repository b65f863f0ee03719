"""Exponential moving average of the weights."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ._gradients import is_sharded_by_fsdp1
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from ..facade import TrainingArguments


logger = logging.getLogger(__name__)


class AveragedWeight(NamedTuple):
    """A weight of a model, the value that is trained, and its average.

    In an evaluation the weight has the value of the average.
    """

    weight: nn.Parameter
    trained: torch.Tensor
    average: torch.Tensor


class EMACallback(TrainerCallback):
    """Keeps an exponential moving average of the weights. Not in transformers.

    After every step the average of each trained weight becomes
    `decay * average + (1 - decay) * weight`. It is on the device of the weight, in float32 if the
    weight is less precise, and the device is not synchronized. Buffers, such as the statistics of
    batch normalization, are not averaged. The training itself is unchanged, bit for bit.
    Checkpoints have the average (in `callback_states.pt`), and a resumed training continues with it
    exactly.

    Evaluations and predictions during the training use the average: the weights are swapped,
    without copies, while they run, and for other forward passes in evaluation mode. When training
    ends, the model gets the average, so that `save_model` saves it; with `load_best_model_at_end`
    that of the best checkpoint.

    Args:
        decay: fraction of the average that an update keeps, from 0 to below 1.
        warmup: whether to begin with a smaller fraction: at most (1 + n) / (10 + n) at the n-th
            update, counted from 0, so that the first weights do not dominate the average for long.

    Attributes:
        updates: the number of updates so far.
        averages: the average of each trained weight, by its name in the model.

    Raises:
        ValueError: `decay` is out of its range. When training begins: the weights of the model are
            sharded.
    """

    reads_checkpoints = False

    def __init__(self, decay: float = 0.999, *, warmup: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay!r}, but it must be from 0 to below 1.")
        self.decay = decay
        self.warmup = warmup

        # The averages outlive the training, for `applied_to`.
        self.updates = 0
        self.averages: dict[str, torch.Tensor] = {}

        # The weights that are averaged, and those that are not yet trained, while a training runs.
        self._weights: dict[str, nn.Parameter] = {}
        self._frozen: dict[str, nn.Parameter] = {}
        self._loaded_state: dict[str, Any] | None = None
        self._swap: _WeightSwap | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Begin with the current weights, or with the average of the checkpoint."""
        self.close()
        if model is None:
            return
        _check_is_not_sharded(model)

        self.updates = 0
        self.averages = {}
        self._weights = {}
        self._frozen = dict(model.named_parameters())
        self._add_trained_weights()
        if state.global_step > 0:
            self._resume(state)

        self._swap = _WeightSwap(self._weights, self.averages)
        self._swap.attach(model)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Average the weights that another callback has unfrozen from now on, too."""
        self._add_trained_weights()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Update the average."""
        if not self.averages:
            return
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        decay = self.decay
        if self.warmup:
            decay = min(decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1

        # torch updates all averages with one kernel for each dtype and device.
        averages = list(self.averages.values())
        weights: list[torch.Tensor] = []
        for weight, average in zip(self._weights.values(), averages, strict=True):
            weights.append(weight.detach().to(average.dtype))
        update = cast(
            "Callable[[list[torch.Tensor], list[torch.Tensor], object], None]",
            get_ema_multi_avg_fn(decay),
        )
        update(averages, weights, None)
        if self._swap is not None:
            self._swap.drop_copies()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Copy the average into the model."""
        import torch

        self.close()
        self._loaded_state = None
        weights = self._weights
        self._weights = {}
        self._frozen = {}
        if not weights:
            return
        with torch.no_grad():
            for name, average in self.averages.items():
                weights[name].copy_(average)

    def close(self) -> None:
        """Stop the use of the average in evaluations, after a training that ended with an error."""
        if self._swap is not None:
            self._swap.detach()
            self._swap = None

    @contextlib.contextmanager
    def applied_to(self, model: nn.Module) -> Generator[None]:
        """Give a model the average inside a `with`, for example to save it.

        After it, the model has its own weights again.

        Args:
            model: the model.
        """
        weights = dict(model.named_parameters())
        swap = _WeightSwap({name: weights[name] for name in self.averages}, self.averages)
        swap.exchange()
        try:
            yield
        finally:
            swap.exchange()

    @property
    def has_evaluated(self) -> bool:
        """Whether evaluations of the running training have used the averages."""
        return self._swap is not None and self._swap.has_been_used

    def begin_evaluation(self) -> None:
        """Give the model the average until `end_evaluation`, in a training."""
        if self._swap is not None:
            self._swap.enter()

    def end_evaluation(self) -> None:
        """Give the model its own weights again."""
        if self._swap is not None:
            self._swap.leave()

    @contextlib.contextmanager
    def trained_weights(self) -> Generator[None]:
        """Give the model its trained weights in the block, even in an evaluation."""
        swap = self._swap
        if swap is None or not swap.has_averages:
            yield
            return
        swap.exchange()
        try:
            yield
        finally:
            swap.exchange()

    def averaged_weights(self) -> list[AveragedWeight]:
        """Return each weight of the running training with its average."""
        weights: list[AveragedWeight] = []
        for index, (name, weight) in enumerate(self._weights.items()):
            trained = weight.detach()
            if self._swap is not None:
                trained = self._swap.trained_value(index, weight)
            weights.append(AveragedWeight(weight, trained, self.averages[name]))
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        It has the averages themselves, not copies, and the number of updates.
        """
        return {"updates": self.updates, "averages": dict(self.averages)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the training begins."""
        self._loaded_state = state_dict

    def load_best_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the average of the best checkpoint, at the end of a training."""
        if self._weights:
            self._load_averages(state_dict["averages"])

    def _add_trained_weights(self, more_names: Collection[str] = ()) -> None:
        """Average the weights that are trained now.

        The average of the first values of a weight is these values.

        Args:
            more_names: weights to average although they are not trained yet.
        """
        names = [name for name, weight in self._frozen.items() if _is_averaged(weight)]
        names.extend(name for name in more_names if name in self._frozen and name not in names)
        for name in names:
            self._weights[name] = self._frozen.pop(name)
            self.averages[name] = _precise_copy(self._weights[name])

    def _resume(self, state: TrainerState) -> None:
        """Continue with the average of a checkpoint."""
        if self._loaded_state is None:
            logger.warning(
                "EMACallback starts from the current weights: the checkpoint at step %s has no "
                "average.",
                state.global_step,
            )
            return
        self.updates = int(self._loaded_state["updates"])

        # A callback may have unfrozen some of them before the checkpoint, and will do so again.
        averages = self._loaded_state["averages"]
        self._add_trained_weights(averages)
        self._load_averages(averages)

    def _load_averages(self, stored: dict[str, torch.Tensor]) -> None:
        """Copy stored averages, which have to be those of the same weights."""
        shapes = {name: average.shape for name, average in self.averages.items()}
        stored_shapes = {name: average.shape for name, average in stored.items()}

        # Names that only one of them has differ too.
        different_names: list[str] = []
        for name in {**shapes, **stored_shapes}:
            if shapes.get(name) != stored_shapes.get(name):
                different_names.append(name)
        if different_names:
            raise ValueError(
                "The average of EMACallback in the checkpoint does not fit the model. They differ "
                f"in {', '.join(different_names[:3])}. Resume with the model that was trained."
            )
        for name, average in self.averages.items():
            average.copy_(stored[name])


def averaging_among(callbacks: Iterable[object]) -> list[EMACallback]:
    """Return the callbacks that average weights."""
    averaging: list[EMACallback] = []
    for callback in callbacks:
        if isinstance(callback, EMACallback):
            averaging.append(callback)
    return averaging


@contextlib.contextmanager
def evaluated_averages(callbacks: Iterable[object]) -> Generator[None]:
    """Give the model the averages of these callbacks, if it is being trained, for an evaluation."""
    averaging = averaging_among(callbacks)
    for callback in averaging:
        callback.begin_evaluation()
    try:
        yield
    finally:
        for callback in reversed(averaging):
            callback.end_evaluation()


@contextlib.contextmanager
def trained_weights(callbacks: Iterable[object]) -> Generator[None]:
    """Give the model its trained weights, for a checkpoint within an evaluation."""
    with contextlib.ExitStack() as swaps:
        for callback in reversed(averaging_among(callbacks)):
            swaps.enter_context(callback.trained_weights())
        yield


class _WeightSwap:
    """Swaps averaged weights into a model for evaluations, and other forward passes in evaluation
    mode.

    In an evaluation the parts of the model may be called instead of the model itself.

    Exchanges only the storage behind the parameters, so it takes microseconds, and optimizers and
    wrappers keep the same parameter objects. The weights are swapped back even if the forward pass
    fails.

    Args:
        weights: the weights of the model, by name; more may be added between forward passes.
        averages: their averages, by name.

    Attributes:
        has_been_used: whether an evaluation has used the averages.
        has_averages: whether the model has the averages now.
    """

    def __init__(
        self, weights: Mapping[str, torch.Tensor], averages: Mapping[str, torch.Tensor]
    ) -> None:
        self.has_been_used = False
        self.has_averages = False
        self._weights = weights
        self._averages = averages
        # The values that the model does not have now: the averages in the dtype of the weights or,
        # during an evaluation, the trained weights.
        self._other_values: list[torch.Tensor] | None = None

        self._model: nn.Module | None = None
        self._hooks: list[RemovableHandle] = []
        # Whether each call of the model that has not returned is in evaluation mode.
        self._calls: list[bool] = []
        self._depth = 0  # of evaluations and of these calls

    def __deepcopy__(self, memo: object) -> _WeightSwap:
        """Return the same object, so that the hooks of a copied model have no effect."""
        return self

    def attach(self, model: nn.Module) -> None:
        """Swap the weights for each forward pass of a model."""
        self._model = model
        # Of several callbacks, the last one that has exchanged the weights restores them first.
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward),
            model.register_forward_hook(self._after_forward, prepend=True, always_call=True),
        ]

    def detach(self) -> None:
        """Remove the hooks from the model, which has its own weights again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._calls = []

        # torch calls no hook after a forward pass that Ctrl-C interrupts.
        self._depth = 0
        if self.has_averages:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the weights with the averages; a second call exchanges them back."""
        if self._other_values is None:
            self._other_values = []
            for name, weight in self._weights.items():
                self._other_values.append(self._averages[name].to(weight.dtype))
        for index, weight in enumerate(self._weights.values()):
            current_values = weight.data
            weight.data = self._other_values[index]
            self._other_values[index] = current_values
        self.has_averages = not self.has_averages

    def enter(self) -> None:
        """Use the averages until `leave` was called as often."""
        self._depth += 1
        if self._depth == 1:
            self.has_been_used = True
            self.exchange()

    def leave(self) -> None:
        """Use the trained weights, if this is the outermost evaluation or forward pass."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            self.exchange()

    def trained_value(self, index: int, weight: nn.Parameter) -> torch.Tensor:
        """Return the trained value of a weight, also while the model has the averages."""
        if self.has_averages and self._other_values is not None:
            return self._other_values[index]
        return weight.detach()

    def drop_copies(self) -> None:
        """Drop copies of the averages, which have changed."""
        self._other_values = None

    def _before_forward(self, module: nn.Module, inputs: object) -> None:
        if module is self._model:
            self._calls.append(not module.training)
            if not module.training:
                self.enter()

    def _after_forward(self, module: nn.Module, inputs: object, output: object) -> None:
        if module is self._model and self._calls and self._calls.pop():
            self.leave()


def _is_averaged(weight: nn.Parameter) -> bool:
    return weight.requires_grad and (weight.is_floating_point() or weight.is_complex())


def _precise_copy(weight: nn.Parameter) -> torch.Tensor:
    """Return a copy of a weight, in float32 or a more precise type."""
    import torch

    dtype = torch.promote_types(weight.dtype, torch.float32)
    return weight.detach().to(dtype, copy=True)


def _check_is_not_sharded(model: nn.Module) -> None:
    """Raise `ValueError` if weights of the model are sharded."""
    by_fsdp1 = is_sharded_by_fsdp1(model)
    for name, weight in model.named_parameters():
        if by_fsdp1 or _is_sharded(weight):
            raise ValueError(
                f"EMACallback cannot average {name}, which is sharded over processes. Remove the "
                "callback, or train without sharding."
            )


def _is_sharded(weight: nn.Parameter) -> bool:
    is_dtensor = hasattr(weight, "full_tensor")
    is_deepspeed_parameter = hasattr(weight, "ds_id")
    return is_dtensor or is_deepspeed_parameter
