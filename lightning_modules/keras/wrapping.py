"""Choose the torch module for a Keras model by the library that the model computes in."""

from __future__ import annotations

from torch import nn

from .module import Compute, KerasModule


def wrap_keras_model(model: object, compute: Compute, *, xla: bool = False) -> KerasModule:
    """Create the torch module around a model.

    Args:
        model: a Keras model on torch, or a model that computes in TensorFlow.
        compute: the forward pass, see `KerasModule`.
        xla: True to compile the TensorFlow graphs with XLA.

    Raises:
        TypeError: the model is not a Keras model.
        ImportError: a library is missing; the message says what to install.
        ValueError: the model computes in another library.
        NotImplementedError: `xla` is True for a model that computes in torch.
    """
    if isinstance(model, nn.Module):
        if xla:
            raise NotImplementedError(
                "xla=True is not supported: the model computes in torch, and XLA is a compiler of "
                "TensorFlow. Remove it."
            )
        from .torch_model import TorchKerasModule

        return TorchKerasModule(model, compute)
    from .tensorflow_model import TensorFlowModule

    return TensorFlowModule(model, compute, xla=xla)
