"""The tokens with a meaning of their own: their attributes, their ids, and how they are added."""

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
    """Attributes such as `pad_token` and `pad_token_id`, which can be set too; the seven of all,
    and a model's own.
    """

    SPECIAL_TOKENS_ATTRIBUTES = [
        f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    ]
    _special_tokens_map: dict[str, str | AddedToken | None]
    _extra_special_tokens: list[str | AddedToken]
    verbose: bool

    def _take_special_tokens(self, kwargs: dict[str, Any]) -> None:
        """Take all tokens out of the arguments of the constructor."""
        self._special_tokens_map = dict.fromkeys(self.SPECIAL_TOKENS_ATTRIBUTES)
        self._extra_special_tokens = []
        own = kwargs.pop("model_specific_special_tokens", None) or {}
        found: dict[str, Any] = {}
        for name in list(kwargs):
            if name in self.SPECIAL_TOKENS_ATTRIBUTES:
                self._special_tokens_map[name] = _token_or_none(name, kwargs.pop(name))
            elif name == "extra_special_tokens":
                self._name_tokens(self._take_extra(kwargs.pop(name)))  # the order of their ids
            elif name.endswith("_token") and isinstance(kwargs[name], (str, AddedToken)):
                found[name] = kwargs.pop(name)
        self._name_tokens({**found, **own})

    def _take_extra(self, tokens: Any) -> dict[str, Any]:
        if isinstance(tokens, Mapping):
            return dict(tokens)
        self._extra_special_tokens = _listed("extra_special_tokens", tokens)
        return {}

    def _name_tokens(self, tokens: Mapping[str, Any]) -> None:
        """Make attributes of a model's own tokens."""
        if not tokens:
            return
        known = self.SPECIAL_TOKENS_ATTRIBUTES
        self.SPECIAL_TOKENS_ATTRIBUTES = known + [name for name in tokens if name not in known]
        for name, token in tokens.items():
            self._special_tokens_map[name] = _token_or_none(name, token)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__
        if name.startswith("__") or "_special_tokens_map" not in held:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        what, by_id = _without_id(name)
        if what in self.SPECIAL_TOKENS_ATTRIBUTES:
            token = held["_special_tokens_map"].get(what)
            if token is None:
                if self.verbose:
                    logger.error("`%s` was asked for, but this tokenizer has none.", name)
                return None
            return self.convert_tokens_to_ids(str(token)) if by_id else str(token)
        if what in _EXTRA:
            tokens = [str(token) for token in held["_extra_special_tokens"]]
            return self.convert_tokens_to_ids(tokens) if by_id else tokens
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}. For all methods of that of "
            f"transformers, {INSTALL_TRANSFORMERS}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        what, by_id = _without_id(name)
        if what in self.SPECIAL_TOKENS_ATTRIBUTES:
            token = self.convert_ids_to_tokens(value) if by_id and value is not None else value
            self._special_tokens_map[what] = _token_or_none(what, token, ValueError)
        elif what in _EXTRA:
            self._set_extra(name, value, by_id)
        else:
            super().__setattr__(name, value)

    def _set_extra(self, name: str, value: Any, by_id: bool) -> None:
        values = _listed(name, value)
        self._extra_special_tokens = (
            [self.convert_ids_to_tokens(each) for each in values] if by_id else values
        )

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Name to token, of those that are set."""
        named = (
            (name, self._special_tokens_map.get(name)) for name in self.SPECIAL_TOKENS_ATTRIBUTES
        )
        return {name: str(token) for name, token in named if token is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """All of them, each once."""
        return list(
            dict.fromkeys(
                [*self.special_tokens_map.values(), *map(str, self._extra_special_tokens)]
            )
        )

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of all of them."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def add_special_tokens(
        self,
        special_tokens_dict: Mapping[str, Any],
        replace_extra_special_tokens: bool = True,
        replace_additional_special_tokens: bool | None = None,
    ) -> int:
        """As `PreTrainedTokenizerBase.add_special_tokens`: set special tokens, and add those the
        vocabulary lacks.

        Args:
            special_tokens_dict: name to token, such as `{"pad_token": "[PAD]"}`;
                "extra_special_tokens" (in 4.x "additional_special_tokens") to a list.
            replace_extra_special_tokens: the list takes the place of the one before, instead of
                being joined to it.
            replace_additional_special_tokens: its name in 4.x.

        Returns:
            the number of tokens that are new to the vocabulary; the model's embedding has to grow
            by as many.

        Raises:
            ValueError: an unknown name, or what is no token.
        """
        replace = replace_extra_special_tokens
        if replace_additional_special_tokens is not None:
            replace = replace_additional_special_tokens
        named = dict(special_tokens_dict or {})
        if "additional_special_tokens" in named:
            named.setdefault("extra_special_tokens", named.pop("additional_special_tokens"))
        self._check_names(named)
        added: list[Any] = []
        for name, value in named.items():
            added += (
                self._join_extra(value, replace)
                if name == "extra_special_tokens"
                else [self._set_named(name, value)]
            )
        return self.add_tokens(added, special_tokens=True)

    def _check_names(self, named: dict[str, Any]) -> None:
        known = [*self.SPECIAL_TOKENS_ATTRIBUTES, "extra_special_tokens"]
        for name in named:
            if name not in known:
                raise ValueError(
                    f"{name!r} is no special token.{did_you_mean(name, known)} There are: "
                    f"{', '.join(known)}."
                )

    def _set_named(self, name: str, value: Any) -> AddedToken:
        token = _as_added(name, value)
        self._special_tokens_map[name] = token
        return token

    def _join_extra(self, values: Any, replace: bool) -> list[AddedToken]:
        tokens = [
            _as_added("extra_special_tokens", value)
            for value in _listed("extra_special_tokens", values)
        ]
        if replace:
            self._extra_special_tokens = list(tokens) if tokens else self._extra_special_tokens
            return tokens
        known = set(map(str, self._extra_special_tokens))
        new = [token for token in tokens if str(token) not in known]
        self._extra_special_tokens = [*self._extra_special_tokens, *new]
        return new

    def add_tokens(
        self,
        new_tokens: str | AddedToken | Sequence[str | AddedToken],
        special_tokens: bool = False,
    ) -> int:
        """As `PreTrainedTokenizerBase.add_tokens`: add those that the vocabulary lacks.

        Args:
            new_tokens: one or several.
            special_tokens: they are left out by `decode(..., skip_special_tokens=True)`, and never
                normalized.

        Returns:
            the number of tokens that are new to the vocabulary.
        """
        if not new_tokens:
            return 0
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens)
        return self._add_tokens(tokens, special_tokens=special_tokens)


def _without_id(name: str) -> tuple[str, bool]:
    """`pad_token_id` is the id of `pad_token`."""
    token = re.sub("_ids?$", "", name)
    return token, token != name


def _listed(name: str, tokens: Any) -> list[Any]:
    if tokens is not None and not isinstance(tokens, (list, tuple)):
        raise ValueError(
            f"`{name}` is {tokens!r}, a {type(tokens).__name__}; expected a list of tokens."
        )
    return list(tokens or [])


def _token_or_none(
    name: str, token: Any, error: type[Exception] = TypeError
) -> str | AddedToken | None:
    if token is None or isinstance(token, (str, AddedToken)):
        return token
    raise error(
        f"`{name}` is {token!r}, a {type(token).__name__}; expected a text or a "
        "`tokenizers.AddedToken`."
    )


def _as_added(name: str, token: Any) -> AddedToken:
    if isinstance(token, AddedToken):
        return token
    if not isinstance(token, str):
        raise ValueError(f"{name!r} is {token!r}; expected a text or a `tokenizers.AddedToken`.")
    return AddedToken(token, rstrip=False, lstrip=False, normalized=False, special=True)
