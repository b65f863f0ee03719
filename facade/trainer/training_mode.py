"""Switch of a model into training mode, before each forward pass of a training."""

from __future__ import annotations

import weakref

from torch import nn

from ...lightning_modules.models.inspection import overrides_mode


class TrainingMode:
    """Call `model.train()` where it has an effect.

    Where every module is in training mode already and `train` and `eval` are those of `nn.Module`,
    the call would change nothing, and would take four times as long as the check. A `train` of the
    model itself, such as one that keeps batch norm frozen, is called before every forward pass, as
    in the reference.
    """

    def __init__(self) -> None:
        self._model: weakref.ref[nn.Module] | None = None
        self._is_overridden = False

    def begin_epoch(self) -> None:
        """Inspect the model again at the next step, since a callback may have replaced its
        `train`.
        """
        self._model = None

    def enter(self, model: nn.Module) -> None:
        """Put a model into training mode.

        Args:
            model: the model that is about to be called, wrapped or not.
        """
        if self._model is None or self._model() is not model:
            self._is_overridden = overrides_mode(model)
            self._model = weakref.ref(model)
        if self._is_overridden or False in [module.training for module in model.modules()]:
            model.train()
