"""What a training does to the model before its first step, and undoes after its last."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from ...lightning_modules.distributed.sharding import is_sharded
from ...lightning_modules.models.activation_checkpointing import enable_activation_checkpointing
from ...lightning_modules.models.liger import apply_liger_kernels
from ...lightning_modules.models.neftune import neftune_hook
from ...lightning_modules.models.underflow_overflow import DebugUnderflowOverflow
from ..arguments.checkpointing import checkpointing
from ..arguments.enums import DebugOption
from .base import TrainerBase
from .special_tokens import align_special_tokens

logger = logging.getLogger(__name__)


class ModelPreparation(TrainerBase):
    """The arguments that change how the model computes, not what is computed from its outputs."""

    @contextlib.contextmanager
    def _model_prepared(self) -> Iterator[None]:
        """The model as it is to be trained; what only the training needs is taken off at the end."""
        self._require_weights_that_can_be_scaled()
        self._warn_what_has_no_effect()
        with contextlib.ExitStack() as until_end:
            self._add_noise(until_end)
            self._watch_numbers(until_end)
            self._checkpoint_activations(until_end)
            self._compile()
            align_special_tokens(self.model, self.processing_class)
            yield

    def _apply_liger_kernels(self) -> None:
        """Once for a model, before anything looks at its forward pass; it stays so after the training."""
        if self.args.use_liger_kernel and self.model is not self._with_liger:
            apply_liger_kernels(self.model, self.args.liger_kernel_config)
            self._with_liger = self.model

    def _add_noise(self, until_end: contextlib.ExitStack) -> None:
        if self.neftune_noise_alpha is not None:
            until_end.callback(neftune_hook(self.model, self.neftune_noise_alpha).remove)

    def _watch_numbers(self, until_end: contextlib.ExitStack) -> None:
        if DebugOption.UNDERFLOW_OVERFLOW in (self.args.debug or ()):
            until_end.callback(DebugUnderflowOverflow(self.model).remove)

    def _require_weights_that_can_be_scaled(self) -> None:
        if self.args.mixed_precision != "fp16" or is_sharded(self.model):  # gathered weights may be in half precision
            return
        trained = {name: one.dtype for name, one in self.model.named_parameters() if one.requires_grad}
        half = [name for name, dtype in trained.items() if dtype is torch.float16]
        if half:
            raise ValueError(
                f"fp16=True keeps weights in float32 and scales the loss, but {len(half)} of {len(trained)} trained "
                f"parameters are float16, the first is {half[0]!r}: their gradients cannot be unscaled. Load the model "
                "in float32 (dtype=torch.float32 in from_pretrained), or call model.float()."
            )

    def _warn_what_has_no_effect(self) -> None:
        every = self.args.torch_empty_cache_steps
        if every is not None and self.args.device.type == "cpu":
            logger.warning(
                "torch_empty_cache_steps=%s has no effect here: torch keeps no cache of memory for the CPU.", every
            )

    def _checkpoint_activations(self, until_end: contextlib.ExitStack) -> None:
        wanted, settings = checkpointing(self.args)
        if wanted:
            until_end.callback(enable_activation_checkpointing(self.model, **settings))

    def _compile(self) -> None:
        """Compile the forward pass in place, so that the model stays the same object, with the same names in it."""
        if self.args.torch_compile and self.model is not self._compiled:
            self.model.compile(backend=self.args.torch_compile_backend, mode=self.args.torch_compile_mode)
            self._compiled = self.model
