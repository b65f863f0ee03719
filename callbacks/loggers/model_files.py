"""A model as files, for trackers that keep it."""

from __future__ import annotations

import os
from typing import Any


def write_model(model: Any, processing_class: Any, folder: str) -> None:
    """Write weights, configuration and what processes the data, where no trainer is there to do it.

    Args:
        model: a model with `save_pretrained`, or any `torch.nn.Module`.
        processing_class: a tokenizer or another processor, or None.
        folder: is made if it does not exist.
    """
    os.makedirs(folder, exist_ok=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        from safetensors.torch import save_model

        save_model(model, os.path.join(folder, "model.safetensors"))
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def write_architecture(model: Any, folder: str) -> None:
    """Write `model_architecture.txt`: the model as it prints."""
    with open(os.path.join(folder, "model_architecture.txt"), "w", encoding="utf-8") as file:
        print(model, file=file)
