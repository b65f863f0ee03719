from .base import DataCollator as DataCollator
from .base import DataCollatorMixin as DataCollatorMixin
from .base import numpy_collate_batch as numpy_collate_batch
from .base import pad_without_fast_tokenizer_warning as pad_without_fast_tokenizer_warning
from .base import to_numpy as to_numpy
from .base import torch_collate_batch as torch_collate_batch
from .default import DefaultDataCollator as DefaultDataCollator
from .default import RemoveColumnsCollator as RemoveColumnsCollator
from .default import collate_samples as collate_samples
from .default import default_data_collator as default_data_collator
from .default import ignored_columns_message as ignored_columns_message
from .default import no_columns_left_error as no_columns_left_error
from .default import numpy_default_data_collator as numpy_default_data_collator
from .default import remove_unused as remove_unused
from .default import torch_default_data_collator as torch_default_data_collator
from .flattening import DataCollatorWithFlattening as DataCollatorWithFlattening
from .language_modeling import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
from .language_modeling import DataCollatorForSOP as DataCollatorForSOP
from .language_modeling import DataCollatorForWholeWordMask as DataCollatorForWholeWordMask
from .packing import DataCollatorWithPacking as DataCollatorWithPacking
from .padding import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
from .padding import DataCollatorForTokenClassification as DataCollatorForTokenClassification
from .padding import DataCollatorWithPadding as DataCollatorWithPadding
from .permutation import (
    DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
)
from .seq2seq import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
