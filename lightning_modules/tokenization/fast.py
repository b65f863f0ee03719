"""`PreTrainedTokenizerFast`: a tokenizer from a tokenizer.json, with its settings."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, processors

from ..common.redaction import is_secret_name, secret_values
from .chat import Chat
from .files import TokenizerFiles, arguments_of, files_of
from .names import NO_LIMIT, AddedToken
from .padding import Padding, check_side
from .save_pretrained import Saving

if TYPE_CHECKING:
    from typing import Self

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
# Arguments of `from_pretrained` that only transformers' class lookup needs.
_IGNORED_ARGUMENTS = (
    "use_fast",
    "trust_remote_code",
    "code_revision",
    "proxies",
    "resume_download",
    "config",
    "tokenizer_type",
    "_from_auto",
    "_commit_hash",
    "_from_pipeline",
    "user_agent",
    "legacy_format",
)

# Settings in tokenizer.json, each with the argument that it is the default of.
_TRUNCATION_ARGUMENTS = {
    "max_length": "max_length",
    "direction": "truncation_side",
    "stride": "stride",
    "strategy": "truncation_strategy",
}
_PADDING_ARGUMENTS = {
    "pad_token": "pad_token",
    "pad_type_id": "pad_token_type_id",
    "direction": "padding_side",
    "length": "max_length",
    "pad_to_multiple_of": "pad_to_multiple_of",
}


class PreTrainedTokenizerBase(Padding, Chat, Saving):
    """Base class for `isinstance` in code that accepts any tokenizer.

    Works like `transformers.PreTrainedTokenizerBase`; its only subclass is
    `PreTrainedTokenizerFast`.
    """

    vocab_files_names: dict[str, str] = {"tokenizer_file": "tokenizer.json"}
    slow_tokenizer_class = None


class PreTrainedTokenizerFast(PreTrainedTokenizerBase):
    """Convert text to token ids and back, with a tokenizer.json.

    Works like `transformers.PreTrainedTokenizerFast` (`TokenizersBackend` in 5.x), but does not
    need transformers. With the same tokenizer.json it makes the same ids, columns and files. It can
    be called from several threads.
    """

    def __init__(self, **kwargs: Any):
        """Create a tokenizer from a `tokenizers.Tokenizer` or a tokenizer.json.

        Args:
            kwargs: either `tokenizer_object`, a `tokenizers.Tokenizer`, which is copied, or
                `tokenizer_file`, a path. Special tokens, such as `pad_token="[PAD]"` and
                `extra_special_tokens=[...]`. The settings `model_max_length`, `padding_side`,
                `truncation_side`, `model_input_names`, `clean_up_tokenization_spaces`,
                `split_special_tokens`, `chat_template`, `name_or_path`, `add_bos_token` and
                `add_eos_token`. Any other argument is stored in `init_kwargs`.

        Raises:
            ValueError: the tokenizer is missing, or a side is unknown.
            TypeError: a special token is not a string, or an argument may be a token of the Hub.
        """
        kwargs = secret_values(kwargs)
        _refuse_secrets(kwargs)
        self._tokenizer = _make_backend(kwargs)
        self._apply_file_defaults(kwargs)
        kwargs.setdefault("backend", "tokenizers")
        added = kwargs.get("added_tokens_decoder") or {}
        self._adds_bos_token = bool(kwargs.get("add_bos_token"))
        self._adds_eos_token = bool(kwargs.get("add_eos_token"))
        self._set_attributes(kwargs)
        self._complete_vocabulary(added)

        # Keep the post-processor of tokenizer.json, unless an argument requests another one.
        is_requested = "add_bos_token" in self.init_kwargs or "add_eos_token" in self.init_kwargs
        if is_requested or self._tokenizer.post_processor is None:
            self.update_post_processor()

    def _apply_file_defaults(self, kwargs: dict[str, Any]) -> None:
        """Use the padding and truncation of tokenizer.json as defaults of the arguments."""
        backend: Any = self._tokenizer
        for settings, arguments in (
            (backend.truncation, _TRUNCATION_ARGUMENTS),
            (backend.padding, _PADDING_ARGUMENTS),
        ):
            if settings is None:
                continue
            for setting_name, argument in arguments.items():
                kwargs.setdefault(argument, settings[setting_name])

    def _set_attributes(self, kwargs: dict[str, Any]) -> None:
        """Set all attributes and check their types; arguments that are used leave `kwargs`."""
        for name in kwargs:
            if callable(getattr(type(self), name, None)):
                raise AttributeError(
                    f"`{name}` is a method of {type(self).__name__}, so it cannot be an argument."
                )

        # transformers 4 calls the argument `additional_special_tokens`.
        if "additional_special_tokens" in kwargs and "extra_special_tokens" not in kwargs:
            kwargs["extra_special_tokens"] = kwargs.pop("additional_special_tokens")

        # Keep the arguments as they were passed, because `save_pretrained` writes them.
        self.init_kwargs = copy.deepcopy(kwargs)
        self.name_or_path = kwargs.pop("name_or_path", "")
        self.verbose = kwargs.pop("verbose", False)
        self._pop_special_tokens(kwargs)

        model_max_length = kwargs.pop("model_max_length", kwargs.pop("max_len", None))
        self.model_max_length = NO_LIMIT
        if model_max_length is not None:
            self.model_max_length = _require_length(model_max_length)
        for name in ("padding_side", "truncation_side"):
            setattr(self, name, check_side(name, kwargs.pop(name, getattr(self, name))))
        names = kwargs.pop("model_input_names", self.model_input_names)
        is_list = isinstance(names, (list, tuple))
        are_names = is_list and all(isinstance(name, str) for name in names)
        _require(are_names, "model_input_names", names, "a list of names")
        self.model_input_names = list(names)

        self.clean_up_tokenization_spaces = _pop_bool(kwargs, "clean_up_tokenization_spaces")
        self.split_special_tokens = _pop_bool(kwargs, "split_special_tokens")
        template = kwargs.pop("chat_template", None)
        is_one = template is None or isinstance(template, str)
        _require(is_one, "chat_template", template, "one template, as text")
        self.chat_template = template
        self.deprecation_warnings = {}
        self.backend = kwargs.pop("backend", None)
        self.files_loaded = kwargs.pop("files_loaded", [])
        self.add_prefix_space = kwargs.get("add_prefix_space", False)
        self._tokenizer.encode_special_tokens = self.split_special_tokens

    def _complete_vocabulary(self, added: dict[int, AddedToken]) -> None:
        """Add tokens that the vocabulary lacks.

        Args:
            added: the added tokens of the files, by their ids. The special tokens of the arguments
                are added after these.
        """
        tokens: list[AddedToken] = [added[index] for index in sorted(added)]
        vocabulary = {*self.added_tokens_encoder, *map(str, tokens)}
        named_tokens = [token for token in self._special_tokens_map.values() if token is not None]
        for token in (*named_tokens, *self._extra_special_tokens):
            if str(token) in vocabulary:
                continue
            vocabulary.add(str(token))
            if isinstance(token, str):
                token = AddedToken(token, special=True)
            tokens.append(token)

        # The token of an attribute such as `pad_token` is special, even if its flag in the files is
        # False.
        named_texts = set(map(str, named_tokens))
        for token in tokens:
            if str(token) in named_texts:
                token.special = True
        self.add_tokens(tokens)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> Self:
        """Load a tokenizer from a file, a folder or the Hub.

        Args:
            pretrained_model_name_or_path: a tokenizer.json; a folder written by transformers 4 or
                5, or by this class; or `owner/name` of a repository on the Hub, which is cached.
            kwargs: `cache_dir`, `force_download`, `local_files_only`, `token`, `revision` and
                `subfolder` are options of the Hub; other arguments override settings in the files.
                `trust_remote_code` has no effect, because no code is run.

        Returns:
            The tokenizer.

        Raises:
            OSError: the tokenizer was not found; the message says how to get it. With
                HF_HUB_OFFLINE=1 only the cache is searched.
        """
        kwargs = secret_values(kwargs)
        name = os.fspath(pretrained_model_name_or_path)
        files = files_of(name, **pop_hub_options(kwargs))
        return cls._from_files(files, name, settings_in(kwargs))

    @classmethod
    def _from_files(cls, files: TokenizerFiles, name: str, settings: dict[str, Any]) -> Self:
        """Create the tokenizer from its files; settings override those in the files."""
        return cls(**arguments_of(files, name, cls.SPECIAL_TOKENS_ATTRIBUTES, settings))

    @property
    def add_bos_token(self) -> bool:
        """Return whether `bos_token` is added before texts.

        Setting it calls `update_post_processor`.
        """
        return self._adds_bos_token

    @add_bos_token.setter
    def add_bos_token(self, value: bool) -> None:
        self._adds_bos_token = bool(value)
        self.update_post_processor()

    @property
    def add_eos_token(self) -> bool:
        """Return whether `eos_token` is added after texts.

        Setting it calls `update_post_processor`.
        """
        return self._adds_eos_token

    @add_eos_token.setter
    def add_eos_token(self, value: bool) -> None:
        self._adds_eos_token = bool(value)
        self.update_post_processor()

    def update_post_processor(self) -> None:
        """Replace the post-processor by one that adds only `bos_token` and `eos_token`, if enabled.

        Works like `TokenizersBackend.update_post_processor` of transformers.
        """
        if self.bos_token is None:
            self._adds_bos_token = False
        if self.eos_token is None:
            self._adds_eos_token = False
        before: list[str] = []
        if self._adds_bos_token:
            before.append(str(self.bos_token))
        after: list[str] = []
        if self._adds_eos_token:
            after.append(str(self.eos_token))

        # In a template, a colon and the type id follow each piece. $A and $B are the texts.
        first = [f"{piece}:0" for piece in (*before, "$A", *after)]
        second = [f"{piece}:1" for piece in (*before, "$B", *after)]
        tokens = [*before, *after]
        self._tokenizer.post_processor = processors.TemplateProcessing(
            single=first,
            pair=[*first, *second],
            special_tokens=[(token, self.convert_tokens_to_ids(token)) for token in tokens],
        )

    def __repr__(self) -> str:
        added = ""
        for index, token in self.added_tokens_decoder.items():
            added += f"\n\t{index}: {token!r},"
        if added:
            added += "\n"
        return (
            f"{type(self).__name__}(name_or_path={str(self.name_or_path)!r}, "
            f"vocab_size={self.vocab_size}, model_max_length={self.model_max_length}, "
            f"padding_side={self.padding_side!r}, truncation_side={self.truncation_side!r}, "
            f"special_tokens={self.special_tokens_map}, "
            f"added_tokens_decoder={{{added}}})"
        )


def pop_hub_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of the Hub from the arguments, and return them."""
    options = {}
    for name in _HUB_OPTIONS:
        if name in kwargs:
            options[name] = kwargs.pop(name)
    return options


def _refuse_secrets(kwargs: dict[str, Any]) -> None:
    """Raise for a token of the Hub, which would be saved with the other settings."""
    for name in kwargs:
        if is_secret_name(name):
            raise TypeError(
                f"`{name}` is not a setting of a tokenizer: pass `token` to from_pretrained."
            )


def settings_in(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are settings of a tokenizer.

    Raises:
        NotImplementedError: an argument is not supported.
        TypeError: an unknown argument may be a token of the Hub.
    """
    _refuse_secrets(kwargs)
    for name in ("gguf_file", "fix_mistral_regex"):
        if kwargs.get(name):
            raise NotImplementedError(
                f"`{name}` is not supported here: install transformers for it."
            )
    return {name: value for name, value in kwargs.items() if name not in _IGNORED_ARGUMENTS}


def _make_backend(kwargs: dict[str, Any]) -> Tokenizer:
    """Return the `tokenizers.Tokenizer` of the arguments, which are removed from `kwargs`.

    Raises:
        ValueError: neither an object nor a file was passed.
    """
    backend = kwargs.pop("tokenizer_object", None)
    path = kwargs.pop("tokenizer_file", None)
    if backend is None and path is not None:
        return Tokenizer.from_file(os.fspath(path))
    if not isinstance(backend, Tokenizer):
        raise ValueError(
            f"`tokenizer_object` is {backend!r:.60}: pass a tokenizers.Tokenizer, or "
            "`tokenizer_file`, a path."
        )
    return copy.deepcopy(backend)


def _require_length(value: Any) -> Any:
    """Return a length unchanged, and raise if it is negative or NaN."""
    # The comparison is negated because every comparison with NaN is False.
    if not value >= 0:
        raise ValueError(
            f"`model_max_length` is {value!r}, but has to be at least 0. Remove it for no limit."
        )
    return value


def _pop_bool(kwargs: dict[str, Any], name: str) -> Any:
    """Remove an argument from `kwargs` and return it; raise unless it is a bool or None."""
    value = kwargs.pop(name, False)
    _require(value in (True, False, None), name, value, "True or False")
    return value


def _require(is_valid: bool, name: str, value: object, expected: str) -> None:
    """Raise a TypeError unless an argument is valid."""
    if not is_valid:
        raise TypeError(f"`{name}` is {value!r:.100}, a {type(value).__name__}: pass {expected}.")
