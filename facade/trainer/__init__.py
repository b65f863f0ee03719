"""The Trainer: one class for its users, one concern a file for its readers."""

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
