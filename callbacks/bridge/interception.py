"""Temporary changes to objects of Lightning."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

logger = logging.getLogger(__name__)


def wrap_method(undo: ExitStack, owner: object, name: str, wrapper: Callable[..., object]) -> None:
    """Replace a method of one object.

    Args:
        undo: restores the method when it is closed.
        owner: the object; its class stays unchanged.
        name: the name of the method.
        wrapper: called as `wrapper(original, *args, **kwargs)`.
    """
    original = getattr(owner, name)
    was_set_on_object = name in vars(owner)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    # With the methods of `object`, since `nn.Module` has its own.
    object.__setattr__(owner, name, method)
    if was_set_on_object:
        undo.callback(object.__setattr__, owner, name, original)
    else:
        undo.callback(object.__delattr__, owner, name)


class ValidationRequest:
    """Lets Lightning validate after the current batch, by changing its settings for a while."""

    def __init__(self) -> None:
        # `val_check_batch` and `check_val_every_n_epoch` of the user, while they are replaced.
        self._user_settings: tuple[Any, Any] | None = None
        self._has_warned = False

    def make(self, trainer: Trainer) -> bool:
        """Request a validation.

        Returns:
            False if Lightning cannot validate, which is logged once.
        """
        is_possible = trainer.enable_validation and trainer.val_check_batch is not None
        if not is_possible:
            self._warn(trainer)
            return False

        if self._user_settings is None:
            self._user_settings = (trainer.val_check_batch, trainer.check_val_every_n_epoch)
        trainer.val_check_batch = 1
        trainer.check_val_every_n_epoch = 1
        return True

    def restore(self, trainer: Trainer) -> None:
        """Restore the settings of the user."""
        if self._user_settings is not None:
            trainer.val_check_batch, trainer.check_val_every_n_epoch = self._user_settings
            self._user_settings = None

    def _warn(self, trainer: Trainer) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        reason = "it has no validation data or no validation_step"
        if trainer.enable_validation:
            reason = "its val_check_interval is a time"
        logger.warning("should_evaluate has no effect: Lightning cannot validate, as %s.", reason)
