"""The Trainer: one class for its users, one concern a file for its readers."""

from .trainer import Trainer

__all__ = ["Trainer"]
