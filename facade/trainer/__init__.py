"""The Trainer and its runs of Lightning.

Contains the documented methods, the LightningModule whose hooks call them, and the checks before a
training. Checkpoints, evaluations, uploads and searches are components of other subpackages.
Imports every subpackage except `compat`.
"""

from importlib import import_module
from typing import Any

from .seq2seq import Seq2SeqTrainer
from .trainer import Trainer

__all__ = ["Seq2SeqTrainer", "Trainer"]


def __getattr__(name: str) -> Any:
    """Return functions of `huggingface_hub`, which can be replaced here as in the module of the
    reference.
    """
    if name in ("create_repo", "upload_folder"):
        return getattr(import_module("huggingface_hub"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
