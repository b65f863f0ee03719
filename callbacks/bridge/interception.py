"""What no hook of a Lightning callback tells: put in place when a training begins, and taken away when it ends."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Interception:
    """Listens to methods of the module and to steps of the optimizers."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def method(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Let `around(original, *args, **kwargs)` stand for a method of this one object."""
        original, before = getattr(owner, name), vars(owner).get(name)

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        object.__setattr__(owner, name, method)
        self._undo.append(
            functools.partial(object.__delattr__, owner, name)
            if before is None
            else functools.partial(object.__setattr__, owner, name, before)
        )

    def steps(self, optimizer: Any, listener: Callable[[Any], None]) -> None:
        """Call `listener(optimizer)` after each of its steps."""
        if hasattr(optimizer, "register_step_post_hook"):
            handle = optimizer.register_step_post_hook(lambda stepped, args, kwargs: listener(stepped))
            self._undo.append(handle.remove)

    def end(self) -> None:
        """Leave everything as it was."""
        while self._undo:
            self._undo.pop()()


class ValidationRequest:
    """Has Lightning validate after the batch that is about to end, by its own settings."""

    def __init__(self) -> None:
        self._settings: tuple[Any, Any] | None = None
        self._said = False

    def make(self, trainer: Any) -> bool:
        """Ask for it; false where there is nothing to validate with, which is said once."""
        possible = trainer.enable_validation and trainer.val_check_batch is not None
        if not possible:
            if not self._said:
                logger.warning(
                    "A callback asks for an evaluation (should_evaluate), but Lightning has %s, so there is none.",
                    "an interval in time" if trainer.enable_validation else "no validation data or step",
                )
            self._said = True
            return False
        if self._settings is None:
            self._settings = (trainer.val_check_batch, trainer.check_val_every_n_epoch)
        trainer.val_check_batch, trainer.check_val_every_n_epoch = 1, 1
        return True

    def settle(self, trainer: Any) -> None:
        """Put back the user's settings."""
        if self._settings is not None:
            trainer.val_check_batch, trainer.check_val_every_n_epoch = self._settings
            self._settings = None
