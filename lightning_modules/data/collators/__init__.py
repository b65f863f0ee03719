"""Collators: from a list of samples to a batch of tensors or arrays.

Importing this folder loads neither torch nor Lightning: a worker process that makes arrays needs no more than numpy.
"""

from .base import (
    DataCollator,
    DataCollatorMixin,
    numpy_collate_batch,
    pad_without_fast_tokenizer_warning,
    to_numpy,
    torch_collate_batch,
)
from .default import (
    DefaultDataCollator,
    RemoveColumnsCollator,
    collate_samples,
    default_data_collator,
    ignored_columns_message,
    no_columns_left_error,
    numpy_default_data_collator,
    remove_unused,
    torch_default_data_collator,
)
from .flattening import DataCollatorWithFlattening
from .language_modeling import DataCollatorForLanguageModeling, DataCollatorForSOP, DataCollatorForWholeWordMask
from .padding import DataCollatorForMultipleChoice, DataCollatorForTokenClassification, DataCollatorWithPadding
from .permutation import DataCollatorForPermutationLanguageModeling
from .seq2seq import DataCollatorForSeq2Seq

__all__ = [
    "DataCollator",
    "DataCollatorForLanguageModeling",
    "DataCollatorForMultipleChoice",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSOP",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorForWholeWordMask",
    "DataCollatorMixin",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "RemoveColumnsCollator",
    "collate_samples",
    "default_data_collator",
    "ignored_columns_message",
    "no_columns_left_error",
    "numpy_collate_batch",
    "numpy_default_data_collator",
    "pad_without_fast_tokenizer_warning",
    "remove_unused",
    "to_numpy",
    "torch_collate_batch",
    "torch_default_data_collator",
]
