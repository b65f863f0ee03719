"""What a training does to the model before its first step, and undoes after its last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...lightning_modules.neftune import neftune_hook
from ..special_tokens import align_special_tokens
from .base import TrainerBase


class ModelPreparation(TrainerBase):
    """The arguments that change how the model computes, not what is computed from its outputs."""

    @contextlib.contextmanager
    def _model_prepared(self) -> Iterator[None]:
        """The model as it is to be trained; what only the training needs is taken off at the end."""
        with contextlib.ExitStack() as until_end:
            self._add_noise(until_end)
            self._enable_gradient_checkpointing()
            self._compile()
            align_special_tokens(self.model, self.processing_class)
            yield

    def _add_noise(self, until_end: contextlib.ExitStack) -> None:
        if self.neftune_noise_alpha is not None:
            until_end.callback(neftune_hook(self.model, self.neftune_noise_alpha).remove)

    def _enable_gradient_checkpointing(self) -> None:
        if self.args.gradient_checkpointing:
            options = self.args.gradient_checkpointing_kwargs
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)  # type: ignore[operator]

    def _compile(self) -> None:
        """Compile the forward pass in place, so that the model stays the same object, with the same names in it."""
        if self.args.torch_compile and self.model is not self._compiled:
            self.model.compile(backend=self.args.torch_compile_backend, mode=self.args.torch_compile_mode)
            self._compiled = self.model
