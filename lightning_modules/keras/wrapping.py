"""Choose the module for a Keras model, by the library that the model computes in."""

from __future__ import annotations

from typing import Any

from torch import nn

from .module import Compute, KerasModule


def wrap_keras_model(model: Any, compute: Compute, *, xla: bool = False) -> KerasModule:
    """Put a module around a model.

    Args:
        model: of Keras on torch, or one that computes in TensorFlow.
        compute: see `KerasModule`.
        xla: have TensorFlow compile it.

    Raises:
        TypeError: it is no Keras model.
        ImportError: a library is missing; says what to install.
        ValueError: it computes in another library than these.
        NotImplementedError: `xla` is asked of torch.
    """
    if isinstance(model, nn.Module):
        if xla:
            raise NotImplementedError(
                "xla=True: the model computes in torch, and XLA is for TensorFlow. Leave it out."
            )
        from .torch_model import TorchKerasModule

        return TorchKerasModule(model, compute)
    from .tensorflow_model import TensorFlowModule

    return TensorFlowModule(model, compute, xla=xla)
