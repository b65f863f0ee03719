"""Check the files of the first save of each model."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules import checkpoints

if TYPE_CHECKING:
    from torch import nn


class FirstSave:
    """Warn of weights that are missing in the files of the first save of a model.

    An override that omits weights does so in each save, so one check is enough.
    """

    def __init__(self) -> None:
        self._model: weakref.ref[nn.Module] | None = None
        """The last model that was saved."""
        self._expected: checkpoints.ExpectedWeights | None = None
        """The weights that the files should contain; None if there is nothing to check."""

    def expect(self, model: nn.Module, gathered: Mapping[str, Any] | None = None) -> None:
        """Record which weights the files should contain, unless the model was saved before.

        Args:
            model: the user's model.
            gathered: the full weights of a sharded model.
        """
        if self._model is not None and self._model() is model:
            return
        self._model = weakref.ref(model)
        self._expected = checkpoints.expected_weights(model, gathered)

    def compare(self, folder: str | Path) -> None:
        """Warn of expected weights that the files of a folder lack. May be called in any thread."""
        expected = self._expected
        self._expected = None
        if expected is not None:
            checkpoints.warn_of_missing_weights(expected, folder)
