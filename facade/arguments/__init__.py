"""The arguments of a training run: fields by concern, validation, the class that joins them.

Here: what a field may hold, what follows from it, what other libraries are told of it. Not here: what a run makes of
the arguments (`facade/strategies`). Imports `facade/distributed` and `lightning_modules`.
"""

from .accelerator import AcceleratorConfig
from .seq2seq import Seq2SeqTrainingArguments
from .support import unsupported
from .training_arguments import TrainingArguments
from .validation import problems

__all__ = ["AcceleratorConfig", "Seq2SeqTrainingArguments", "TrainingArguments", "problems", "unsupported"]
