"""The arguments of a training run: fields by concern, validation, the class that joins them.

Here: the values of each field, derived values, and exports to other libraries. Not here: the
translation of arguments into a run (`facade/strategies`). Imports `facade/distributed` and
`lightning_modules`.
"""

from .accelerator import AcceleratorConfig
from .rules import problems
from .training_arguments import Seq2SeqTrainingArguments, TrainingArguments

__all__ = ["AcceleratorConfig", "Seq2SeqTrainingArguments", "TrainingArguments", "problems"]
