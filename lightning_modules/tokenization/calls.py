"""Calls of a tokenizer on texts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common.suggestions import did_you_mean
from .backend import Backend, settings_lock
from .encoding import BatchEncoding
from .names import INSTALL_TRANSFORMERS, PaddingStrategy, TensorType, TruncationStrategy
from .padding import Lengths, lengths_of

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""The key of a warning, which scripts for transformers set to disable the warning."""


@dataclass(kw_only=True, slots=True)
class CallOptions:
    """The arguments of a call, except texts and lengths."""

    add_special_tokens: bool = True
    """Whether to add the special tokens that the model expects."""
    stride: int = 0
    """Number of tokens by which an overflowing part overlaps with the previous one."""
    is_split_into_words: bool = False
    """Whether texts are lists of words."""
    pad_to_multiple_of: int | None = None
    """Round the length up to a multiple of this number."""
    padding_side: str | None = None
    """"right" or "left"; by default the attribute of this name."""
    return_tensors: str | TensorType | None = None
    """Return tensors ("pt") or arrays ("np"); by default lists."""
    return_token_type_ids: bool | None = None
    """Whether to return 0 for tokens of the first text of a pair, and 1 for those of the second.

    By default they are returned if `model_input_names` contains "token_type_ids".
    """
    return_attention_mask: bool | None = None
    """Whether to return 1 for tokens and 0 for padding.

    By default the mask is returned if `model_input_names` contains "attention_mask".
    """
    return_overflowing_tokens: bool = False
    """Whether to return the parts that are cut off as more rows, and for each row the index of its
    text as "overflow_to_sample_mapping".
    """
    return_special_tokens_mask: bool = False
    """Whether to return 1 for special tokens and 0 for others."""
    return_offsets_mapping: bool = False
    """Whether to return the start and end (exclusive) of each token in characters, as
    "offset_mapping".
    """
    return_length: bool = False
    """Whether to return the number of tokens of each row, including padding."""
    verbose: bool = True
    """Whether to warn, once, about texts that are too long for the model."""
    split_special_tokens: bool | None = None
    """Whether to treat special tokens in texts as plain text; by default the attribute."""


_OPTIONS = [field.name for field in fields(CallOptions)]
_LENGTHS = ["padding", "truncation", "max_length"]
_UNSUPPORTED = ("max_target_length", "tokenizer_kwargs")


class Rows(NamedTuple):
    """The texts of a call, in the form that `tokenizers` encodes."""

    rows: list[Any]
    """A text, a list of words, or a pair of these, for each row."""
    is_batch: bool
    """False for a single text, whose columns are returned without a batch axis."""


class Calls(Backend):
    """The methods `tokenizer(...)`, `encode` and `tokenize`."""

    model_max_length: int
    split_special_tokens: bool
    deprecation_warnings: dict[str, bool]

    def __call__(
        self,
        text: object = None,
        text_pair: object = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str | PaddingStrategy = False,
        truncation: bool | str | TruncationStrategy | None = None,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Convert texts to token ids and further columns.

        Works like `PreTrainedTokenizerFast.__call__` of transformers, but is thread-safe, and warns
        about unknown arguments.

        Args:
            text: a text or a list of texts; with `is_split_into_words` a list of words or a list of
                such lists. Pairs may be passed as tuples, too.
            text_pair: the second texts of pairs.
            text_target: texts whose token ids become "labels".
            text_pair_target: the second texts of pairs in `text_target`.
            add_special_tokens: whether to add the special tokens that the model expects.
            padding: True or "longest" pads to the longest row of the batch, "max_length" to
                `max_length`; False does not pad.
            truncation: True or "longest_first", "only_first", "only_second"; False does not
                truncate. By default texts are truncated if `max_length` is passed.
            max_length: number of tokens; by default `model_max_length`.
            kwargs: the fields of `CallOptions`.

        Returns:
            the columns, without a batch axis for a single text.

        Raises:
            ValueError: no text is passed, the tokenizer has no pad token for padding, or rows have
                different lengths with `return_tensors`.
            TypeError: a text is not a string.
            NotImplementedError: `max_target_length` or `tokenizer_kwargs` is passed.
        """
        if text is None and text_target is None:
            raise ValueError(
                "There is nothing to tokenize: pass `text`, or `text_target` for labels."
            )
        options = self._options(kwargs)
        options.add_special_tokens = add_special_tokens
        lengths = lengths_of(
            self, padding, truncation, max_length, options.pad_to_multiple_of, options.verbose
        )
        encoded = None
        if text is not None:
            encoded = self._encode(text, text_pair, lengths, options)

        # The token ids of the targets become the labels.
        if text_target is not None:
            targets = self._encode(text_target, text_pair_target, lengths, options)
            if encoded is None:
                return targets
            encoded["labels"] = targets["input_ids"]
        assert encoded is not None
        return encoded

    def encode(
        self, text: object, text_pair: object = None, add_special_tokens: bool = True, **kwargs: Any
    ) -> Any:
        """Convert a text to token ids.

        Args:
            text: a text, or a list of texts.
            text_pair: the second texts of pairs.
            add_special_tokens: whether to add the special tokens that the model expects.
            kwargs: the other arguments of `tokenizer(...)`.

        Returns:
            The column "input_ids".
        """
        return self(text, text_pair, add_special_tokens=add_special_tokens, **kwargs)["input_ids"]

    def tokenize(
        self, text: object, pair: Any = None, add_special_tokens: bool = False, **kwargs: Any
    ) -> list[str]:
        """Split a text into tokens.

        Args:
            text: the text.
            pair: the second text of a pair.
            add_special_tokens: whether to add the special tokens that the model expects.
            kwargs: the other arguments of `tokenizer(...)`.

        Returns:
            The tokens, as strings.
        """
        return self(text, pair, add_special_tokens=add_special_tokens, **kwargs).tokens()

    def _options(self, kwargs: dict[str, Any]) -> CallOptions:
        """Return the options of a call, and warn about unknown ones."""
        options = CallOptions()
        for name, value in kwargs.items():
            if name in _OPTIONS:
                setattr(options, name, value)
            elif name in _UNSUPPORTED:
                raise NotImplementedError(
                    f"tokenizer(..., {name}=...): pass the arguments directly, in one call for "
                    f"texts and another one for targets, or {INSTALL_TRANSFORMERS}"
                )
            else:
                self._warn_once(
                    f"unknown-{name}",
                    f"The tokenizer was called with `{name}`, which it does not know: it has no "
                    f"effect.{did_you_mean(name, [*_OPTIONS, *_LENGTHS])}",
                )
        return options

    def _encode(
        self, text: object, pair: Any, lengths: Lengths, options: CallOptions
    ) -> BatchEncoding:
        """Encode texts, or pairs of them."""
        rows, is_batch = rows_of(text, pair, options.is_split_into_words)

        # With `return_overflowing_tokens`, the parts that are cut off become additional rows.
        encodings: list[tokenizers.Encoding] = []
        row_indices: list[int] = []
        for index, row in enumerate(self._encode_rows(rows, lengths, options)):
            encodings_of_row = [row]
            if options.return_overflowing_tokens:
                encodings_of_row += row.overflowing
            encodings += encodings_of_row
            row_indices += [index] * len(encodings_of_row)

        columns = self._columns(encodings, options)
        if options.return_overflowing_tokens:
            columns["overflow_to_sample_mapping"] = row_indices
        for ids in columns["input_ids"]:
            self._warn_of_length(len(ids), lengths, options)

        # Return the lists of a single text without a batch axis. Tensors always have one.
        returns_lists = options.return_tensors is None
        if is_batch or not returns_lists or options.return_overflowing_tokens:
            return BatchEncoding(columns, encodings, tensor_type=options.return_tensors)
        for name, values in columns.items():
            if isinstance(values[0], list):
                columns[name] = values[0]
        return BatchEncoding(columns, encodings)

    def _encode_rows(
        self, rows: list[Any], lengths: Lengths, options: CallOptions
    ) -> list[tokenizers.Encoding]:
        """Encode rows with the `tokenizers` library."""
        split = options.split_special_tokens
        if split is None:
            split = self.split_special_tokens

        # No other thread may change these settings before `encode_batch` has used them.
        with settings_lock():
            self._set_truncation(lengths, options)
            self._set_padding(lengths, options)
            if self._tokenizer.encode_special_tokens != split:
                self._tokenizer.encode_special_tokens = split
            try:
                return self._tokenizer.encode_batch(
                    rows,
                    is_pretokenized=options.is_split_into_words,
                    add_special_tokens=options.add_special_tokens,
                )
            except TypeError as error:
                raise TypeError(
                    f"{rows!r:.100} cannot be tokenized ({error}). {_EXPECTED}"
                ) from error

    def _set_truncation(self, lengths: Lengths, options: CallOptions) -> None:
        """Set the truncation of the next call."""
        if not lengths.truncates:
            self._tokenizer.no_truncation()
            return
        assert lengths.max_length is not None
        self._tokenizer.enable_truncation(
            lengths.max_length,
            strategy=lengths.truncation.value,
            direction=self.truncation_side,
            stride=options.stride,
        )

    def _set_padding(self, lengths: Lengths, options: CallOptions) -> None:
        """Set the padding of the next call."""
        if not lengths.pads:
            self._tokenizer.no_padding()
            return
        length = None
        if lengths.padding == PaddingStrategy.MAX_LENGTH:
            length = lengths.max_length
        self._tokenizer.enable_padding(
            length=length,
            direction=options.padding_side or self.padding_side,
            pad_id=self.pad_token_id,
            pad_token=self.pad_token,
            pad_type_id=self.pad_token_type_id,
            pad_to_multiple_of=options.pad_to_multiple_of,
        )

    def _columns(
        self, encodings: list[tokenizers.Encoding], options: CallOptions
    ) -> dict[str, Any]:
        """Return the columns of a call, each a list with an entry for each row."""
        columns: dict[str, Any] = {"input_ids": [row.ids for row in encodings]}
        if self._returns("token_type_ids", options.return_token_type_ids):
            columns["token_type_ids"] = [row.type_ids for row in encodings]
        if self._returns("attention_mask", options.return_attention_mask):
            columns["attention_mask"] = [row.attention_mask for row in encodings]
        if options.return_special_tokens_mask:
            columns["special_tokens_mask"] = [row.special_tokens_mask for row in encodings]
        if options.return_offsets_mapping:
            columns["offset_mapping"] = [row.offsets for row in encodings]
        if options.return_length:
            columns["length"] = [len(row.ids) for row in encodings]
        return columns

    def _returns(self, name: str, option: bool | None) -> bool:
        """Return whether to return a column: by default if the model accepts it."""
        if option is None:
            return name in self.model_input_names
        return option

    def _warn_of_length(self, length: int, lengths: Lengths, options: CallOptions) -> None:
        """Warn if a row is too long for the model."""
        limit = self.model_max_length
        is_too_long = limit != 0 and length > limit
        if lengths.max_length is None and is_too_long and options.verbose:
            self._warn_once(
                _TOO_LONG,
                f"A text has {length} tokens, more than the {limit} that the model takes "
                "(`model_max_length`). Pass `truncation=True`, or the model will fail on it.",
            )

    def _warn_once(self, key: str, message: str) -> None:
        """Log a warning unless this tokenizer has logged one with the same key."""
        if not self.deprecation_warnings.get(key, False):
            logger.warning(message)
        self.deprecation_warnings[key] = True


_EXPECTED = (
    "Expected a text, a list of texts, or with `is_split_into_words=True` a list of words or a "
    "list of such lists; pairs as a second argument, or as tuples of two."
)


def rows_of(text: Any, pair: Any, is_split_into_words: bool) -> Rows:
    """Return the rows of a call.

    Args:
        text: a text, or a list of texts.
        pair: the second texts of pairs; None without pairs.
        is_split_into_words: whether each text is a list of words.

    Raises:
        TypeError: a list of texts has a single second text.
        ValueError: the numbers of first and second texts differ.
    """
    is_batch = isinstance(text, (list, tuple))
    if is_batch and is_split_into_words:
        # A list of words is a single text.
        is_batch = bool(text) and isinstance(text[0], (list, tuple))
    if not is_batch:
        if pair:
            return Rows([(text, pair)], is_batch=False)
        return Rows([text], is_batch=False)
    if pair is None:
        return Rows(list(text), is_batch=True)
    if isinstance(pair, str):
        raise TypeError(
            "`text_pair` is one text, but `text` a list: pass a list with the second text of each "
            "pair."
        )
    return Rows(list(zip(text, pair, strict=True)), is_batch=True)
