"""The Trainer: one class for its users, one concern a file for its readers."""

from .seq2seq import Seq2SeqTrainer
from .trainer import Trainer

__all__ = ["Seq2SeqTrainer", "Trainer"]
