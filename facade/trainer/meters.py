"""Meters of the loss, tokens and parameters of a training."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...callbacks.recording import RecordedValues
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.training.loss_meter import LossMeter
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss
from ..arguments.rank_groups import copies_of_batches

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class RunningLoss:
    """Sum the losses of all micro-batches, since the last log and over the training.

    Args:
        trainer: the Trainer, whose `state.global_step` numbers the steps.

    Attributes:
        meter: collects losses and steps since `last_logged` without synchronisation.
        total: sum of the losses since `first_step`.
        first_step: step after which `total` starts.
        last_logged: step of the last log.
        not_finite: number of steps with a NaN or infinite loss so far, over all processes.
        recorded: the values of `Trainer.record`.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.meter = LossMeter(trainer.args.logging_nan_inf_filter)
        self.total = 0.0
        self.first_step = trainer.state.global_step
        self.last_logged = trainer.state.global_step
        self.not_finite = 0
        self.recorded = RecordedValues(_share)
        self._others_recorded = False
        self._has_warned = False

        # Steps since the last `take` with a loss on this rank that was not finite.
        self._not_finite_steps: set[int] = set()

        # Created by `since_log`.
        self._tensor: torch.Tensor | None = None

    @property
    def since_log(self) -> torch.Tensor:
        """The sum of losses in this process since the last log, for overrides that log themselves.

        The same tensor is returned for the whole training, and in-place changes to it take effect.
        Synchronises with the device.
        """
        total = self._sum_up()
        self._warn_once(self._not_finite_steps)
        if self._tensor is None:
            self._tensor = torch.zeros((), dtype=torch.float32, device=self.trainer.args.device)
        return self._tensor.fill_(total)

    @since_log.setter
    def since_log(self, loss: torch.Tensor) -> None:
        # `-=` also assigns, with the same tensor that it has already modified in place.
        if loss is not self._tensor:
            self._sum_up()
            self._tensor = loss

    def take(self) -> float:
        """Return the sum since the last call, averaged over all processes."""
        loss = self._sum_up()
        # Reset in place, because an override may hold a reference to the tensor.
        if self._tensor is not None:
            self._tensor -= self._tensor
        steps = self._not_finite_steps
        if self.trainer.args.world_size > 1:
            loss, steps = self._reduce_over_processes(loss)

        self._warn_once(steps)
        self.not_finite += len(steps)
        self._not_finite_steps = set()
        self.total += loss
        return loss

    def mean(self) -> float:
        """Return the mean loss per step of the training, and warn if some were not finite."""
        self.take()
        steps = self.trainer.state.global_step - self.first_step
        if self.not_finite and self.trainer.state.is_world_process_zero:
            logger.warning(
                "%s of the %s steps of this training had a NaN or infinite loss.",
                self.not_finite,
                steps,
            )
        return self.total / max(steps, 0.001)

    def state_dict(self, *, is_step_done: bool) -> dict[str, Any]:
        """Return the state from which a resumed training logs what an uninterrupted one would.

        Args:
            is_step_done: the current step is finished; otherwise the resumed training takes it
                again, so that its losses are left out.
        """
        if self._tensor is not None:
            self.meter.begin_with(self._tensor.item())
        steps = None
        if not is_step_done:
            steps = self.trainer.state.global_step - self.last_logged
        return {"last_logged": self.last_logged, "losses": self.meter.state_dict(steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`.

        The mean over the training starts at the last log before the checkpoint, because earlier
        losses are not part of this run.
        """
        self.last_logged = state["last_logged"]
        self.first_step = state["last_logged"]
        self.meter.load_state_dict(state["losses"])

    def pop_recorded(self) -> dict[str, float]:
        """Return the means of recorded values over all processes.

        Call it after `take`, which determines whether any process has recorded values.
        """
        if not (self.recorded or self._others_recorded):
            return {}
        return self.recorded.take(gather_objects)

    def _sum_up(self) -> float:
        if self._tensor is not None:
            self.meter.begin_with(self._tensor.item())
        total = self.meter.take()
        for steps_since_log in self.meter.not_finite_steps:
            self._not_finite_steps.add(self.last_logged + steps_since_log + 1)
        return total

    def _reduce_over_processes(self, loss: float) -> tuple[float, set[int]]:
        """Return the mean loss, and the steps that are not finite in any process."""
        local = torch.tensor(
            [[loss, len(self._not_finite_steps), bool(self.recorded)]],
            device=self.trainer.args.device,
        )
        losses, counts, recorded = self.trainer.accelerator.gather(local).T.contiguous()
        self._others_recorded = bool(recorded.any())

        # The counts are equal on all processes, so either all of them gather the steps or none.
        steps: set[int] = set()
        if counts.any():
            steps = steps.union(*gather_objects(self._not_finite_steps))
        return losses.mean().item(), steps

    def _warn_once(self, steps: set[int]) -> None:
        """Warn at the first log with non-finite steps; `mean` reports their total at the end."""
        if not steps or self._has_warned:
            return
        self._has_warned = True
        if not self.trainer.state.is_world_process_zero:
            return

        note = ""
        if self.meter.skip_not_finite:
            note = " logging_nan_inf_filter leaves them out of the logged average."
        logger.warning(
            "%s of the %s steps since the last log had a NaN or infinite loss, the first of them "
            "step %s.%s",
            len(steps),
            self.trainer.state.global_step - self.last_logged,
            min(steps),
            note,
        )


def _share(micro_batch: MicroBatchLoss) -> torch.Tensor | float:
    """Return the fraction of the optimizer step's items that are in a micro-batch."""
    return 1 / micro_batch.divisor


class RunningLossAttribute:
    """Descriptor that maps an attribute of the reference's Trainer to one of `RunningLoss`.

    Args:
        name: the name of the attribute of `RunningLoss`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Any, owner: type) -> Any:
        if trainer is None:
            return self
        return getattr(trainer._lightrainer.loss_of_run, self.name)

    def __set__(self, trainer: Any, value: Any) -> None:
        setattr(trainer._lightrainer.loss_of_run, self.name, value)


class TokenCounter:
    """Count tokens for `include_num_input_tokens_seen`.

    `state.num_input_tokens_seen` is summed over all ranks at logs, evaluations and checkpoints, and
    at the end of the training. In between it is only up to date in a single process with batches on
    the CPU: counts on another device stay pending, because reading them would synchronize with the
    device.

    Args:
        trainer: the Trainer.

    Attributes:
        pending: tokens of this process that are not yet added to the state; a tensor if they were
            counted on the device.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.pending: int | torch.Tensor = 0

    def add(self, inputs: object) -> None:
        """Count the tokens of a micro-batch without synchronizing with the device."""
        self.pending = self.pending + self._count(inputs)
        if isinstance(self.pending, int):
            self.flush_own()

    def flush(self) -> None:
        """Add the pending tokens of all processes to the state. All processes must call this."""
        self.flush_own()
        trainer = self.trainer
        args = trainer.args
        if args.include_num_input_tokens_seen == "no" or args.world_size == 1:
            return
        tokens = trainer.accelerator.reduce(torch.as_tensor(self.pending, device=args.device))
        trainer.state.num_input_tokens_seen += int(tokens) // copies_of_batches(args)
        self.pending = 0

    def flush_own(self) -> None:
        """Add the pending tokens to the state if this is the only process."""
        if self.trainer.args.world_size == 1:
            self.trainer.state.num_input_tokens_seen += int(self.pending)
            self.pending = 0

    def _count(self, inputs: Any) -> int | torch.Tensor:
        """Return the number of tokens in a micro-batch, as a tensor if the batch is on a device."""
        trainer = self.trainer
        name = getattr(trainer.model, "main_input_name", "input_ids")
        if name not in inputs:
            logger.warning(
                "include_num_input_tokens_seen is on, but the batch has no %r, the model's "
                "main_input_name.",
                name,
            )
            return 0

        # Masks with more than two dimensions are used for packed documents; their sum is not the
        # number of tokens.
        if trainer.args.include_num_input_tokens_seen == "non_padding":
            if "attention_mask" in inputs and inputs["attention_mask"].ndim == 2:
                return _number(inputs["attention_mask"].sum())
            padding = getattr(trainer.processing_class, "pad_token_id", None)
            if padding is not None:
                return _number((inputs[name] != padding).sum())
            logger.warning(
                "Padding cannot be told from tokens without attention_mask or "
                "pad_token_id, so all are counted."
            )
        return inputs[name].numel()


def _number(count: torch.Tensor) -> int | torch.Tensor:
    """Return a count as a number if it is on the CPU; reading another device would block."""
    if count.is_cpu:
        return int(count)
    return count


class ParameterCounter:
    """Count the parameters of a model, excluding embeddings.

    The count is cached for each model, unless the model has its own method.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._model: weakref.ref[nn.Module] | None = None
        self._count = 0

    def count(self) -> int:
        """Return the count of the full model, even if it has been sharded since."""
        model: Any = self.trainer.model
        is_known = self._model is not None and self._model() is model
        strategy = self.trainer._lightrainer.strategy
        if not is_known or (_counts_itself(model) and strategy.sharded_model is None):
            self._count = strategy.non_embedding_parameters(model)
            self._model = weakref.ref(model)
        return self._count


def _counts_itself(model: nn.Module) -> bool:
    """Return whether `num_parameters` is defined by a script instead of by transformers."""
    return not getattr(model.num_parameters, "__module__", "").startswith("transformers.")
