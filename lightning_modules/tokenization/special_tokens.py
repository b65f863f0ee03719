"""Special tokens: their attributes and ids, and adding them to the vocabulary."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.suggestions import did_you_mean
from .names import INSTALL_TRANSFORMERS, AddedToken

logger = logging.getLogger(__name__)

_EXTRA = ("extra_special_tokens", "additional_special_tokens")


class SpecialTokens:
    """Attributes such as `pad_token` and `pad_token_id`, which can be read and set.

    All tokenizers have seven special tokens; a model may have additional ones.
    """

    SPECIAL_TOKENS_ATTRIBUTES = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ]
    _special_tokens_map: dict[str, str | AddedToken | None]
    _extra_special_tokens: list[str | AddedToken]
    verbose: bool

    def _pop_special_tokens(self, kwargs: dict[str, Any]) -> None:
        """Set the tokens in the constructor's arguments, and remove them from `kwargs`."""
        self._special_tokens_map = dict.fromkeys(self.SPECIAL_TOKENS_ATTRIBUTES)
        self._extra_special_tokens = []
        model_tokens = kwargs.pop("model_specific_special_tokens", None) or {}
        other_tokens: dict[str, object] = {}
        for name in list(kwargs):
            if name in self.SPECIAL_TOKENS_ATTRIBUTES:
                self._special_tokens_map[name] = _token_or_none(name, kwargs.pop(name))
            elif name == "extra_special_tokens":
                # Set these now, because tokens get their ids in the order in which they are set.
                self._set_extra(kwargs.pop(name))
            elif name.endswith("_token") and isinstance(kwargs[name], (str, AddedToken)):
                other_tokens[name] = kwargs.pop(name)
        self._add_attributes({**other_tokens, **model_tokens})

    def _set_extra(self, tokens: Any) -> None:
        """Set the extra tokens: as a list, or as attributes if a mapping names them."""
        if isinstance(tokens, Mapping):
            self._add_attributes(tokens)
        else:
            self._extra_special_tokens = _as_list("extra_special_tokens", tokens)

    def _add_attributes(self, tokens: Mapping[str, object]) -> None:
        """Add attributes for tokens that only this model has."""
        if not tokens:
            return
        attributes = self.SPECIAL_TOKENS_ATTRIBUTES
        self.SPECIAL_TOKENS_ATTRIBUTES = attributes + [
            name for name in tokens if name not in attributes
        ]
        for name, token in tokens.items():
            self._special_tokens_map[name] = _token_or_none(name, token)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` look up methods before the object has attributes.
        attributes = self.__dict__
        if name.startswith("__") or "_special_tokens_map" not in attributes:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

        token_name, is_id = _split_name(name)
        if token_name in self.SPECIAL_TOKENS_ATTRIBUTES:
            token = attributes["_special_tokens_map"].get(token_name)
            if token is None:
                if self.verbose:
                    logger.error("`%s` is not set for this tokenizer.", name)
                return None
            if is_id:
                return self.convert_tokens_to_ids(str(token))
            return str(token)

        if token_name in _EXTRA:
            tokens = [str(token) for token in attributes["_extra_special_tokens"]]
            if is_id:
                return self.convert_tokens_to_ids(tokens)
            return tokens
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}. For all methods of transformers' "
            f"tokenizers, {INSTALL_TRANSFORMERS}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        token_name, is_id = _split_name(name)
        if token_name in self.SPECIAL_TOKENS_ATTRIBUTES:
            if is_id and value is not None:
                value = self.convert_ids_to_tokens(value)
            self._special_tokens_map[token_name] = _token_or_none(token_name, value, ValueError)
        elif name in _EXTRA:
            self._extra_special_tokens = _as_list(name, value)
        else:
            super().__setattr__(name, value)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Return the tokens that are set, by attribute name."""
        tokens: dict[str, str] = {}
        for name in self.SPECIAL_TOKENS_ATTRIBUTES:
            token = self._special_tokens_map.get(name)
            if token is not None:
                tokens[name] = str(token)
        return tokens

    @property
    def all_special_tokens(self) -> list[str]:
        """Return all special tokens, without duplicates."""
        tokens = [*self.special_tokens_map.values(), *map(str, self._extra_special_tokens)]
        return list(dict.fromkeys(tokens))

    @property
    def all_special_ids(self) -> list[int]:
        """Return the ids of all special tokens."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def add_special_tokens(
        self,
        special_tokens_dict: Mapping[str, object],
        replace_extra_special_tokens: bool = True,
    ) -> int:
        """Set special tokens, and add those that the vocabulary lacks.

        Works like `PreTrainedTokenizerBase.add_special_tokens` of transformers.

        Args:
            special_tokens_dict: tokens by attribute name, such as `{"pad_token": "[PAD]"}`. The
                entry "extra_special_tokens" (in 4.x "additional_special_tokens") is a list.
            replace_extra_special_tokens: True to replace the current list, False to append to it.

        Returns:
            The number of tokens that are new to the vocabulary, by which the model's embedding has
            to grow.

        Raises:
            ValueError: a name is unknown, or a value is not a token.
        """
        tokens_by_name = dict(special_tokens_dict or {})
        if "additional_special_tokens" in tokens_by_name:
            tokens = tokens_by_name.pop("additional_special_tokens")
            tokens_by_name.setdefault("extra_special_tokens", tokens)

        # Check all names before setting anything.
        attributes = [*self.SPECIAL_TOKENS_ATTRIBUTES, "extra_special_tokens"]
        for name in tokens_by_name:
            if name not in attributes:
                raise ValueError(
                    f"{name!r} is not a special token.{did_you_mean(name, attributes)} The special "
                    f"tokens are: {', '.join(attributes)}."
                )

        new_tokens: list[str | AddedToken] = []
        for name, value in tokens_by_name.items():
            if name == "extra_special_tokens":
                new_tokens += self._set_extra_tokens(value, replace_extra_special_tokens)
            else:
                token = _as_added_token(name, value)
                self._special_tokens_map[name] = token
                new_tokens.append(token)
        return self.add_tokens(new_tokens, special_tokens=True)

    def _set_extra_tokens(self, values: object, replace: bool) -> list[AddedToken]:
        """Replace the extra tokens, or append to them, and return the new ones."""
        name = "extra_special_tokens"
        tokens = [_as_added_token(name, value) for value in _as_list(name, values)]
        # As in the reference, an empty list does not remove the current tokens.
        if replace:
            if tokens:
                self._extra_special_tokens = list(tokens)
            return tokens

        known_tokens = set(map(str, self._extra_special_tokens))
        new_tokens = [token for token in tokens if str(token) not in known_tokens]
        self._extra_special_tokens = [*self._extra_special_tokens, *new_tokens]
        return new_tokens

    def add_tokens(
        self,
        new_tokens: str | AddedToken | Sequence[str | AddedToken],
        special_tokens: bool = False,
    ) -> int:
        """Add tokens that the vocabulary lacks.

        Args:
            new_tokens: a token, or several.
            special_tokens: whether the tokens are special. `decode(..., skip_special_tokens=True)`
                skips special tokens, and they are never normalized.

        Returns:
            The number of tokens that are new to the vocabulary.
        """
        if not new_tokens:
            return 0
        if isinstance(new_tokens, (str, AddedToken)):
            new_tokens = [new_tokens]
        return self._add_tokens(list(new_tokens), special_tokens=special_tokens)


def _split_name(name: str) -> tuple[str, bool]:
    """Return the attribute name of a token, and whether the name stands for its id.

    For example, `pad_token_id` gives `pad_token` and True.
    """
    token_name = re.sub("_ids?$", "", name)
    return token_name, token_name != name


def _as_list(name: str, tokens: object) -> list[Any]:
    """Return a list of tokens; empty for None."""
    if tokens is None:
        return []
    if not isinstance(tokens, (list, tuple)):
        raise ValueError(
            f"`{name}` is {tokens!r}, a {type(tokens).__name__}: pass a list of tokens."
        )
    return list(tokens)


def _token_or_none(
    name: str, token: object, error: type[Exception] = TypeError
) -> str | AddedToken | None:
    """Return a token or None unchanged, and raise for other values."""
    if token is None or isinstance(token, (str, AddedToken)):
        return token
    raise error(
        f"`{name}` is {token!r}, a {type(token).__name__}: pass a string or a "
        "`tokenizers.AddedToken`."
    )


def _as_added_token(name: str, token: object) -> AddedToken:
    """Return a token as an `AddedToken`; a string becomes a special token."""
    if isinstance(token, AddedToken):
        return token
    if not isinstance(token, str):
        raise ValueError(f"{name!r} is {token!r}: pass a string or a `tokenizers.AddedToken`.")
    return AddedToken(token, rstrip=False, lstrip=False, normalized=False, special=True)
