"""Refuse unknown arguments with advice, and convert those of transformers 4 if accepted."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Any, TypeVar

from ...lightning_modules.common.redaction import secret_values
from .old_names import (
    OLD_NAMES,
    OldAttribute,
    Removed,
    advice,
    old_names_accepted,
    with_current_names,
)

if TYPE_CHECKING:
    from types import CodeType
    from typing import Self


class RejectsUnknownKeywords:
    """A class whose constructor refuses unknown keywords, with their new name or the nearest one.

    The check is in `__new__`, which gets all keywords, of subclasses too, before `__init__`; Python
    itself reports the first one only.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """As `object.__new__`, but unknown keywords are refused with advice.

        Raises:
            TypeError: See `refuse_unknown`.
        """
        # Only the names are kept: tracebacks show local variables, and values may be tokens.
        kwargs = dict.fromkeys(kwargs)
        refuse_unknown(cls, kwargs)
        return super().__new__(cls)

    @classmethod
    def _advice(cls, name: str, known: Collection[str]) -> str:
        return f"{cls.__name__} has no such argument.{advice(name, known)}"

    @classmethod
    def _old_names(cls) -> Set[str]:
        """Return the names of transformers 4, except those that a subclass has as fields."""
        fields: dict[str, object] = getattr(cls, "__dataclass_fields__", {})
        return OLD_NAMES.keys() - fields.keys()

    def _with_current_names(self, kwargs: dict[str, Any]) -> dict[str, object]:
        """Return keywords with the current names of those of transformers 4."""
        old_names = self._old_names()
        # Arguments without a successor can still be read.
        for name in old_names:
            if name in kwargs and isinstance(OLD_NAMES[name], Removed):
                vars(self)[name] = kwargs[name]
        return with_current_names(kwargs, old_names)


for _name in OLD_NAMES:
    setattr(RejectsUnknownKeywords, _name, OldAttribute(_name))


def refuse_unknown(cls: Any, kwargs: dict[str, Any]) -> None:
    """Refuse keywords that the constructor of a class does not accept.

    Args:
        cls: The class, which has the methods of `RejectsUnknownKeywords`.
        kwargs: The keyword arguments.

    Raises:
        TypeError: Names each unknown keyword and a remedy, without its value, which may be a
            secret.
    """
    # A constructor in C, or one with **kwargs, checks its keywords itself.
    code: CodeType | None = getattr(inspect.unwrap(cls.__init__), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return

    # All parameters except `self`; reading the code object is faster than making a signature.
    parameter_count = code.co_argcount + code.co_kwonlyargcount
    parameters = code.co_varnames[1:parameter_count]
    unknown = [name for name in kwargs if name not in parameters]
    has_old_names = old_names_accepted() and not cls._old_names().isdisjoint(unknown)

    # Constructors of subclasses are decorated here; those of this package are already.
    is_decorated = hasattr(cls.__init__, "understands_old_names")
    if (has_old_names or "hub_token" in parameters) and not is_decorated:
        understand_old_names(cls)
    if has_old_names:
        unknown = [name for name in unknown if name not in cls._old_names()]

    if unknown:
        lines = [f"{name}: {cls._advice(name, parameters)}" for name in unknown]
        if len(lines) > 1:
            lines.insert(0, f"{len(lines)} arguments of {cls.__name__} do not exist:")
        raise TypeError("\n".join(lines))


class SignatureOfInit:
    """Gives a class with a generic `__new__` the signature of its `__init__`."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        """Return the signature without `self`."""
        signature = inspect.signature(owner.__init__)
        parameters = list(signature.parameters.values())
        return signature.replace(parameters=parameters[1:])


T = TypeVar("T", bound=type)


def understand_old_names(cls: T) -> T:
    """Decorate a class whose constructor then converts keywords of transformers 4, if accepted.

    Tokens among the keywords are masked before the constructor runs, so that tracebacks do not show
    them.
    """
    constructor = cls.__init__

    @functools.wraps(constructor)
    def with_old_names(self: Any, *args: object, **kwargs: Any) -> None:
        kwargs = secret_values(kwargs)
        if old_names_accepted() and not self._old_names().isdisjoint(kwargs):
            kwargs = self._with_current_names(kwargs)
        constructor(self, *args, **kwargs)

    vars(with_old_names)["understands_old_names"] = True
    cls.__init__ = with_old_names
    return cls
