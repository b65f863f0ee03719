"""The Trainer, its runs of Lightning, and what only it needs.

Here: the documented methods, the LightningModule whose hooks call them, what is checked before a training. Not here:
checkpoints, evaluations, uploads and searches, which are components of other rooms. Imports every room but `compat`.
"""

from importlib import import_module
from typing import Any

from .seq2seq import Seq2SeqTrainer
from .trainer import Trainer

__all__ = ["Seq2SeqTrainer", "Trainer"]


def __getattr__(name: str) -> Any:
    """The functions of `huggingface_hub` that can be replaced here, as in the module of the reference's Trainer."""
    if name in ("create_repo", "upload_folder"):
        return getattr(import_module("huggingface_hub"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
