"""What a training counts for its logs: its losses, the tokens it has seen, the parameters it computes with."""

from __future__ import annotations

import logging
import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.training.losses import LossMeter
from ..arguments.parallelism import copies_of_batches

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


class RunningLoss:
    """Adds up the losses of all micro-batches, between two logs and over the whole training.

    Args:
        trainer: the Trainer; its `state.global_step` says when a loss came.

    Attributes:
        meter: takes the loss of each micro-batch, and the steps since `last_logged`; nothing waits for it.
        total: the sum over the training since `first_step`.
        first_step: the step after which that sum begins.
        last_logged: the step of the last log.
        not_finite: how many losses were NaN or infinite in what `take` gave last, over all processes.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.meter = LossMeter(trainer.args.logging_nan_inf_filter)
        self.total = 0.0
        self.first_step = self.last_logged = trainer.state.global_step
        self.not_finite = 0
        self._has_warned = False
        self._tensor: torch.Tensor | None = None  # once somebody has asked for it

    @property
    def since_log(self) -> torch.Tensor:
        """The sum since the last log in this process, for overrides that log by themselves.

        It is one tensor for the whole training, and what is done to it in place counts. This waits for the device.
        """
        total = self._sum_up()
        if self.meter.first_not_finite is not None and not self._has_warned:
            self._warn(self.last_logged + self.meter.first_not_finite + 1)
        if self._tensor is None:
            self._tensor = torch.zeros((), dtype=torch.float32, device=self.trainer.args.device)
        return self._tensor.fill_(total)

    @since_log.setter
    def since_log(self, loss: torch.Tensor) -> None:
        if loss is not self._tensor:  # `-=` sets what it has changed in place
            self._sum_up()
            self._tensor = loss

    def take(self) -> float:
        """The sum since the last call, the mean over all processes."""
        loss = self._sum_up()
        if self._tensor is not None:
            self._tensor -= self._tensor
        self.not_finite, first = self.meter.not_finite, self.meter.first_not_finite
        step = math.inf if first is None else self.last_logged + first + 1
        if self.trainer.args.world_size > 1:
            loss, self.not_finite, step = self._of_all_processes(loss, step)
        if self.not_finite and not self._has_warned:
            self._warn(int(step))
        self.total += loss
        return loss

    def mean(self) -> float:
        """The loss of a step in the whole training, with what has not been taken yet."""
        self.take()
        return self.total / max(self.trainer.state.global_step - self.first_step, 0.001)

    def state_dict(self) -> dict[str, Any]:
        """What the logs of a training that goes on from here need to be those of an uninterrupted one."""
        if self._tensor is not None:
            self.meter.begin_with(self._tensor.item())
        return {"last_logged": self.last_logged, "losses": self.meter.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`: the next log is that of the uninterrupted training.

        The mean of the whole is over the steps since the last log before, as this one took no part in the others.
        """
        self.last_logged = self.first_step = state["last_logged"]
        self.meter.load_state_dict(state["losses"])

    def _sum_up(self) -> float:
        if self._tensor is not None:
            self.meter.begin_with(self._tensor.item())
        return self.meter.take()

    def _of_all_processes(self, loss: float, step: float) -> tuple[float, int, float]:
        said = torch.tensor([[loss, self.not_finite, step]], device=self.trainer.args.device)
        losses, counts, steps = self.trainer.accelerator.gather(said).T.contiguous()
        return losses.mean().item(), int(counts.sum()) // copies_of_batches(self.trainer.args), steps.min().item()

    def _warn(self, step: int) -> None:
        self._has_warned = True
        if not self.trainer.state.is_world_process_zero:
            return
        kept_out = " logging_nan_inf_filter keeps it out of the average that is logged."
        logger.warning(
            "The loss of step %s is NaN or infinite.%s This is said once.",
            step,
            kept_out * self.meter.skip_not_finite,
        )


class OfRunningLoss:
    """An attribute of the Trainer that stands for one of its running loss, under the name it has in the reference.

    Args:
        name: what it is called there.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Any, owner: type) -> Any:
        return self if trainer is None else getattr(trainer._running_loss, self.name)

    def __set__(self, trainer: Any, value: Any) -> None:
        setattr(trainer._running_loss, self.name, value)


class TokenCounter:
    """Counts for `include_num_input_tokens_seen`: per process, added up when somebody wants to know.

    Args:
        trainer: the Trainer, whose `state.num_input_tokens_seen` is what all processes have seen.

    Attributes:
        pending: tokens of this process that are not in the state yet.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.pending = 0

    def add(self, inputs: Any) -> None:
        """Count the tokens of a micro-batch."""
        tokens = self._count(inputs)
        if self.trainer.args.world_size > 1:
            self.pending += tokens
        else:
            self.trainer.state.num_input_tokens_seen += tokens

    def flush(self) -> None:
        """Add up what all processes have counted since the last time."""
        trainer, args = self.trainer, self.trainer.args
        if args.world_size == 1 or args.include_num_input_tokens_seen == "no":
            return
        seen = trainer.accelerator.reduce(torch.tensor(self.pending, device=args.device))
        trainer.state.num_input_tokens_seen += int(seen) // copies_of_batches(args)
        self.pending = 0

    def _count(self, inputs: Any) -> int:
        trainer = self.trainer
        name = getattr(trainer.model, "main_input_name", "input_ids")
        if name not in inputs:
            logger.warning(
                "include_num_input_tokens_seen is on, but the batch has no %r, the model's main_input_name.", name
            )
            return 0
        if trainer.args.include_num_input_tokens_seen == "non_padding":
            if "attention_mask" in inputs:
                return int(inputs["attention_mask"].sum())
            padding = getattr(trainer.processing_class, "pad_token_id", None)
            if padding is not None:
                return int((inputs[name] != padding).sum())
            logger.warning(
                "Padding cannot be told from tokens without attention_mask or pad_token_id: all are counted."
            )
        return inputs[name].numel()


class ParameterCounter:
    """Counts the parameters outside the embeddings once for a model: it takes long, and their number stays.

    Args:
        trainer: the Trainer whose model it is.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._model: weakref.ref[nn.Module] | None = None
        self._count = 0

    def count(self) -> int:
        """Count those of the whole model, also where this process has only a part of it by now."""
        model: Any = self.trainer.model
        if self._model is None or self._model() is not model:
            self._count = self.trainer._strategy.parameters_beside_embeddings(model)
            self._model = weakref.ref(model)
        return self._count
