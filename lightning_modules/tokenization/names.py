"""Names of a tokenizer's files and options, and the lengths that mean "no limit"."""

from __future__ import annotations

from tokenizers import AddedToken as AddedToken

from ..common.enums import ExplicitEnum

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
CHAT_TEMPLATE_FOLDER = "additional_chat_templates"

INSTALL_TRANSFORMERS = (
    "pip install transformers: lightrainer's own tokenizers, which are used without it, have what "
    "training needs."
)
"""The end of error messages about features that our tokenizers lack."""

NO_LIMIT = int(1e30)
"""`model_max_length` of a tokenizer whose model accepts any length."""
ALMOST_NO_LIMIT = int(1e20)
"""A larger `model_max_length` means no limit: nothing is padded or truncated to it."""


class PaddingStrategy(ExplicitEnum):
    """Whether a tokenizer pads to the longest text, to `max_length`, or not at all.

    Works like `transformers.utils.PaddingStrategy`.
    """

    LONGEST = "longest"
    MAX_LENGTH = "max_length"
    DO_NOT_PAD = "do_not_pad"


class TruncationStrategy(ExplicitEnum):
    """The text of a pair that a tokenizer truncates.

    Works like `transformers.tokenization_utils_base.TruncationStrategy`.
    """

    ONLY_FIRST = "only_first"
    ONLY_SECOND = "only_second"
    LONGEST_FIRST = "longest_first"
    DO_NOT_TRUNCATE = "do_not_truncate"


class TensorType(ExplicitEnum):
    """The values of `return_tensors`, which is the type of the columns that a tokenizer returns.

    Works like `transformers.utils.TensorType`, without MLX.
    """

    PYTORCH = "pt"
    NUMPY = "np"
