"""The tokenizer."""

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

_HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
# They steer how transformers looks for classes and code, of which there is neither here.
_WITHOUT_MEANING = (
    *(
        "use_fast",
        "trust_remote_code",
        "code_revision",
        "proxies",
        "resume_download",
        "config",
        "tokenizer_type",
    ),
    *("_from_auto", "_commit_hash", "_from_pipeline", "user_agent", "legacy_format"),
)

# Settings in tokenizer.json, and their names as arguments.
_OF_TRUNCATION = {
    "max_length": "max_length",
    "direction": "truncation_side",
    "stride": "stride",
    "strategy": "truncation_strategy",
}
_OF_PADDING = {
    "pad_token": "pad_token",
    "pad_type_id": "pad_token_type_id",
    "direction": "padding_side",
    "length": "max_length",
    "pad_to_multiple_of": "pad_to_multiple_of",
}


class PreTrainedTokenizerBase(Padding, Chat, Saving):
    """As `transformers.PreTrainedTokenizerBase`: what all tokenizers are; here there is one
    kind.
    """

    vocab_files_names: dict[str, str] = {"tokenizer_file": "tokenizer.json"}
    slow_tokenizer_class = None


class PreTrainedTokenizerFast(PreTrainedTokenizerBase):
    """As `transformers.PreTrainedTokenizerFast` (`TokenizersBackend` in 5.x), without transformers.

    The same ids, columns and files, from the same tokenizer.json; it can be called from several
    threads.
    """

    def __init__(self, **kwargs: Any):
        """Take a tokenizer of the `tokenizers` library.

        Args:
            kwargs: `tokenizer_object`, a `tokenizers.Tokenizer`, which is copied; or
                `tokenizer_file`, a path. Special tokens such as `pad_token="[PAD]"`,
                `extra_special_tokens=[...]`. `model_max_length`, `padding_side`, `truncation_side`,
                `model_input_names`, `clean_up_tokenization_spaces`, `split_special_tokens`,
                `chat_template`, `name_or_path`, `add_bos_token`, `add_eos_token`. Whatever else is
                kept in `init_kwargs`.

        Raises:
            ValueError: there is no tokenizer; an unknown side.
            TypeError: a special token that is no text; what may be a token of the Hub.
        """
        kwargs = secret_values(kwargs)
        _refuse_secrets(kwargs)
        self._tokenizer = _backend(kwargs)
        self._follow_file(kwargs)
        kwargs.setdefault("backend", "tokenizers")
        added = kwargs.get("added_tokens_decoder") or {}
        self._frames_text = {
            "bos": bool(kwargs.get("add_bos_token")),
            "eos": bool(kwargs.get("add_eos_token")),
        }
        self._settle(kwargs)
        self._complete_vocabulary(added)
        asked = "add_bos_token" in self.init_kwargs or "add_eos_token" in self.init_kwargs
        if asked or self._tokenizer.post_processor is None:
            self.update_post_processor()

    def _follow_file(self, kwargs: dict[str, Any]) -> None:
        """Padding and truncation in tokenizer.json are defaults of the settings."""
        backend: Any = self._tokenizer
        for found, names in ((backend.truncation, _OF_TRUNCATION), (backend.padding, _OF_PADDING)):
            if found is not None:
                for written, name in names.items():
                    kwargs.setdefault(name, found[written])

    def _settle(self, kwargs: dict[str, Any]) -> None:
        """Set all attributes."""
        for name in kwargs:
            if callable(getattr(type(self), name, None)):
                raise AttributeError(
                    f"`{name}` is a method of {type(self).__name__}, so it cannot be an argument."
                )
        if "additional_special_tokens" in kwargs and "extra_special_tokens" not in kwargs:
            kwargs["extra_special_tokens"] = kwargs.pop("additional_special_tokens")
        self.init_kwargs = copy.deepcopy(kwargs)
        self.name_or_path = kwargs.pop("name_or_path", "")
        self.verbose = kwargs.pop("verbose", False)
        self._take_special_tokens(kwargs)
        longest = kwargs.pop("model_max_length", kwargs.pop("max_len", None))
        self.model_max_length = NO_LIMIT if longest is None else _length(longest)
        for name in ("padding_side", "truncation_side"):
            setattr(self, name, check_side(name, kwargs.pop(name, getattr(self, name))))
        names = kwargs.pop("model_input_names", self.model_input_names)
        fits = isinstance(names, (list, tuple)) and all(isinstance(each, str) for each in names)
        _require(fits, "model_input_names", names, "a list of names")
        self.model_input_names = list(names)
        self.clean_up_tokenization_spaces = _switch(kwargs, "clean_up_tokenization_spaces")
        self.split_special_tokens = _switch(kwargs, "split_special_tokens")
        self.chat_template = _templates(kwargs.pop("chat_template", None))
        self.deprecation_warnings = {}
        self.backend = kwargs.pop("backend", None)
        self.files_loaded = kwargs.pop("files_loaded", [])
        self.add_prefix_space = kwargs.get("add_prefix_space", False)
        self._tokenizer.encode_special_tokens = self.split_special_tokens

    def _complete_vocabulary(self, added: dict[int, AddedToken]) -> None:
        """Add what the files name: added tokens by their ids, then special ones that are still
        missing.
        """
        tokens: list[Any] = [token for _, token in sorted(added.items(), key=lambda item: item[0])]
        known = {*self.added_tokens_encoder, *map(str, tokens)}
        named = [token for token in self._special_tokens_map.values() if token is not None]
        for token in (*named, *self._extra_special_tokens):
            if str(token) not in known:
                known.add(str(token))
                tokens.append(AddedToken(token, special=True) if isinstance(token, str) else token)
        texts = set(map(str, named))
        for token in tokens:
            if str(token) in texts:
                token.special = True
        self.add_tokens(tokens)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> Self:
        """As `PreTrainedTokenizerFast.from_pretrained`: from a tokenizer.json, a folder, or the
        Hub.

        Args:
            pretrained_model_name_or_path: a file, a folder that transformers 4.x or 5.x or this
                class wrote, or `owner/name` of a repository, which is kept in the cache of this
                machine.
            kwargs: `cache_dir`, `force_download`, `local_files_only`, `token`, `revision` and
                `subfolder` say where from; the rest takes precedence over the files.
                `trust_remote_code` has no effect: no code is run.

        Raises:
            OSError: it cannot be had; it says what to do. Under HF_HUB_OFFLINE=1 only the cache is
                looked at.
        """
        kwargs = secret_values(kwargs)
        name = os.fspath(pretrained_model_name_or_path)
        return cls._from_files(files_of(name, **hub_options(kwargs)), name, settings_in(kwargs))

    @classmethod
    def _from_files(cls, files: TokenizerFiles, name: str, settings: dict[str, Any]) -> Self:
        return cls(**arguments_of(files, name, cls.SPECIAL_TOKENS_ATTRIBUTES, settings))

    @property
    def add_bos_token(self) -> bool:
        """Put `bos_token` before texts; setting it replaces the post-processor."""
        return self._frames_text["bos"]

    @add_bos_token.setter
    def add_bos_token(self, value: bool) -> None:
        self._frames_text["bos"] = bool(value)
        self.update_post_processor()

    @property
    def add_eos_token(self) -> bool:
        """Put `eos_token` after texts; setting it replaces the post-processor."""
        return self._frames_text["eos"]

    @add_eos_token.setter
    def add_eos_token(self, value: bool) -> None:
        self._frames_text["eos"] = bool(value)
        self.update_post_processor()

    def update_post_processor(self) -> None:
        """As `TokenizersBackend.update_post_processor`: only `bos_token` and `eos_token` around
        each text, if any.
        """
        tokens = {"bos": self.bos_token, "eos": self.eos_token}
        for name, token in tokens.items():
            if token is None:
                self._frames_text[name] = False
        begin, end = ([tokens[name]] if self._frames_text[name] else [] for name in ("bos", "eos"))

        def frame(text: str, number: int) -> list[str]:
            return [f"{piece}:{number}" for piece in (*begin, text, *end)]

        self._tokenizer.post_processor = processors.TemplateProcessing(
            single=frame("$A", 0),
            pair=[*frame("$A", 0), *frame("$B", 1)],
            special_tokens=[(token, self.convert_tokens_to_ids(token)) for token in (*begin, *end)],
        )

    def __repr__(self) -> str:
        added = "\n\t".join(
            f"{index}: {token!r}," for index, token in self.added_tokens_decoder.items()
        )
        return (
            f"{type(self).__name__}(name_or_path={str(self.name_or_path)!r}, "
            f"vocab_size={self.vocab_size}, model_max_length={self.model_max_length}, "
            f"padding_side={self.padding_side!r}, truncation_side={self.truncation_side!r}, "
            f"special_tokens={self.special_tokens_map}, "
            f"added_tokens_decoder={{{f'{chr(10)}{chr(9)}{added}{chr(10)}' if added else ''}}})"
        )


def hub_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Take out of the arguments where the files come from."""
    return {name: kwargs.pop(name) for name in _HUB if name in kwargs}


def _refuse_secrets(kwargs: dict[str, Any]) -> None:
    """Refuse a token of the Hub, which would be saved with the other settings."""
    for name in kwargs:
        if is_secret_name(name):
            raise TypeError(
                f"`{name}` is no setting of a tokenizer: pass `token` to from_pretrained."
            )


def settings_in(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are settings of a tokenizer.

    Raises:
        NotImplementedError: one that asks for what is not here.
        TypeError: one that may be a token, under a name that is not known.
    """
    _refuse_secrets(kwargs)
    for name in ("gguf_file", "fix_mistral_regex"):
        if kwargs.get(name):
            raise NotImplementedError(
                f"`{name}` is not supported here: install transformers for it."
            )
    return {name: value for name, value in kwargs.items() if name not in _WITHOUT_MEANING}


def _backend(kwargs: dict[str, Any]) -> Tokenizer:
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


def _length(value: Any) -> Any:
    if not value >= 0:  # not a number, either
        raise ValueError(
            f"`model_max_length` is {value!r}; it has to be at least 0. Leave it out for no limit."
        )
    return value


def _switch(kwargs: dict[str, Any], name: str) -> Any:
    value = kwargs.pop(name, False)
    _require(value in (True, False, None), name, value, "True or False")
    return value


def _require(fits: bool, name: str, value: Any, expected: str) -> None:
    if not fits:
        raise TypeError(
            f"`{name}` is {value!r:.100}, a {type(value).__name__}; expected is {expected}."
        )


def _templates(value: Any) -> Any:
    """Return a template, or several by name, which files have as a list."""
    if isinstance(value, (list, tuple)) and all(isinstance(each, dict) for each in value):
        value = {each.get("name"): each.get("template") for each in value}
    texts = [value] if not isinstance(value, dict) else [*value, *value.values()]
    fits = value is None or all(isinstance(text, str) for text in texts)
    _require(fits, "chat_template", value, "a template, or several by name")
    return value
