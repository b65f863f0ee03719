"""Tokenizers based on the `tokenizers` library, without transformers.

Here: calls, padding, chats, files and the Hub. Token ids and files are the same as with
transformers. Imports `common`.
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
