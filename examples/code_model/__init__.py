"""The parts of `train_code_model.py` that have nothing to do with the Trainer: the model and the
text.
"""

from .data import END_OF_FILE, build_tokenizer, python_sources, split_by_file, to_blocks
from .model import CodeGPT

__all__ = [
    "END_OF_FILE",
    "CodeGPT",
    "build_tokenizer",
    "python_sources",
    "split_by_file",
    "to_blocks",
]
