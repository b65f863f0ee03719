"""The arguments and the best model of a Trainer, kept while trials change the one and replace the other."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class GivenArguments:
    """The arguments as the user gave them; every trial begins with these, and they are there again at the end.

    Args:
        trainer: the Trainer, before the search.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._host = trainer
        self._args = trainer.args
        self._batch_size = self._host._train_batch_size
        self._values = {
            name: (value, copy.deepcopy(value) if isinstance(value, (dict, list)) else value)
            for name, value in vars(trainer.args).items()
        }

    def restore(self) -> None:
        """Put all of them back, in the same object."""
        host = self._host
        host.args = self._args
        present = vars(self._args)
        present.clear()
        for name, (value, pristine) in self._values.items():
            untouched = not isinstance(value, (dict, list)) or value == pristine
            present[name] = value if untouched else copy.deepcopy(pristine)
        host._train_batch_size = self._batch_size
        renew_accelerator(host)


def renew_accelerator(trainer: Trainer) -> None:
    """Let the Trainer make an accelerator for its arguments as they are now; a `gather_function` of the user stays."""
    given = trainer.gather_function
    own = given == trainer.accelerator.gather_for_metrics
    trainer.create_accelerator_and_postprocess()
    if not own:
        trainer.gather_function = given


class BestModel:
    """Keeps the model of the best trial so far, in main memory; one model, however many trials there are.

    Args:
        direction: `minimize` or `maximize`.
        wanted: keep anything at all.
    """

    def __init__(self, direction: str, wanted: bool) -> None:
        self._sign = 1 if direction == "maximize" else -1
        self._wanted = wanted
        self.number: int | None = None
        self._value: float | None = None
        self.model: Any = None
        self._state: Any = None

    def offer(self, trainer: Trainer, number: int, value: Any) -> None:
        """Take the model of a trial that has just ended, if it is the best one."""
        better = self._value is None or self._sign * value > self._sign * self._value if value == value else False
        if self._wanted and better and not trainer.plan.strategy.distributes:
            self.number, self._value = number, value
            self.model, self._state = trainer.model, trainer.state

    def make_room(self) -> None:
        """Move the model out of the way of the next trial."""
        if self.model is not None and getattr(self.model, "hf_device_map", None) is None:
            try:
                self.model.to("cpu")
            except (ValueError, RuntimeError) as error:  # quantized models say that they cannot
                logger.debug("The best model stays where it is: %s", error)

    def hand_over(self, trainer: Trainer, run_id: str) -> bool:
        """Let the Trainer have it, if it is that of the trial with this number."""
        if self.model is None or str(self.number) != run_id:
            return False
        model, self.model = self.model, None
        install(trainer, model)
        trainer.state = self._state
        return True


def install(host: Trainer, model: Any) -> None:
    """Make this the Trainer's model, on its device; without an optimizer, as that belongs to another."""
    if host.place_model_on_device:
        host._move_model_to_device(model, host.args.device)
    host.model = host.model_wrapped = model
    forget_optimizer(host)
    host.callback_handler.model = model


def forget_optimizer(trainer: Trainer) -> None:
    """Nobody needs the optimizer of a trial that has ended, which is twice as large as its model."""
    trainer.optimizer = trainer.lr_scheduler = None
    handler = trainer.callback_handler
    handler.optimizer = handler.lr_scheduler = handler.train_dataloader = handler.eval_dataloader = None
