"""Tokenizers over the `tokenizers` library, without transformers.

Here: calls, padding, chats, files and the Hub. Token ids and files are those of transformers.
Imports `common`.
"""

from .auto import AutoTokenizer
from .encoding import BatchEncoding
from .fast import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from .names import AddedToken, PaddingStrategy, TensorType, TruncationStrategy

__all__ = [
    "AddedToken",
    "AutoTokenizer",
    "BatchEncoding",
    "PaddingStrategy",
    "PreTrainedTokenizerBase",
    "PreTrainedTokenizerFast",
    "TensorType",
    "TruncationStrategy",
]
