"""Refuse unknown arguments with advice, and understand those of transformers 4 where they are accepted."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Any, TypeVar

from ...lightning_modules.common.redaction import hidden_values, secret_values
from .old_names import OLD_NAMES, accepted, advice, modernised, turned, warn

if TYPE_CHECKING:
    from typing_extensions import Self


class NamesItsArguments:
    """A class whose constructor refuses unknown keywords, with their new name or the nearest one.

    The check is in `__new__`, which gets all keywords, of subclasses too, before `__init__`; Python itself reports the
    first one only.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """As `object.__new__`, but unknown keywords are refused with advice.

        Raises:
            TypeError: see `refuse_unknown`.
        """
        kwargs = hidden_values(kwargs)  # keep tokens out of tracebacks
        refuse_unknown(cls, kwargs)
        return super().__new__(cls)

    @classmethod
    def _advice(cls, name: str, known: Collection[str]) -> str:
        return f"{cls.__name__} has no such argument.{advice(name, known)}"

    @classmethod
    def _old_names(cls) -> Set[str]:
        return OLD_NAMES.keys() - getattr(cls, "__dataclass_fields__", {}).keys()

    def _modernise(self, given: dict[str, Any]) -> dict[str, Any]:
        for name in self._old_names() & given.keys():
            self._keep(name, given[name])
        return modernised(given, getattr(self, "__dataclass_fields__", {}).keys())

    def __getattr__(self, name: str) -> Any:
        if name not in OLD_NAMES or not accepted():
            return self.__getattribute__(name)  # raises what it raised before
        old = OLD_NAMES[name]
        if old.read is None:
            return self.__dict__.get(_KEPT, {}).get(name, old.default)
        warn(f"{name} is an argument of transformers 4. Instead: {old.now}.")
        return old.read(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in OLD_NAMES or not accepted() or name not in self._old_names():
            object.__setattr__(self, name, value)
            return
        self._keep(name, value)
        for new, meant in turned(name, value, vars(self)).items():
            object.__setattr__(self, new, meant)

    def _keep(self, name: str, value: Any) -> None:
        if OLD_NAMES[name].read is None:
            self.__dict__.setdefault(_KEPT, {})[name] = value


def refuse_unknown(cls: Any, kwargs: dict[str, Any]) -> None:
    """Refuse keywords that the constructor of a class does not take.

    Args:
        cls: the class, which has the methods of `NamesItsArguments`.
        kwargs: the keywords.

    Raises:
        TypeError: Names each unknown keyword and a remedy, without its value: a misspelt one may have a secret.
    """
    known = _parameters(cls.__init__)
    if known is not None and "hub_token" in known:
        understand_old_names(cls)  # masks tokens for a subclass's constructor, which appears in tracebacks
    unknown = [] if known is None else [name for name in kwargs if name not in known]
    if unknown and accepted() and not cls._old_names().isdisjoint(unknown):
        # For the constructor of a subclass; those of this package are decorated.
        understand_old_names(cls)
        unknown = [name for name in unknown if name not in cls._old_names()]
    if unknown:
        said = [f"{name}: {cls._advice(name, known or ())}" for name in unknown]
        several = f"{len(said)} arguments that {cls.__name__} does not have:\n" if len(said) > 1 else ""
        raise TypeError(several + "\n".join(said))


class SignatureOfInit:
    """Descriptor that gives a class with a generic `__new__` the signature of its `__init__`."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        """Return the signature without `self`."""
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


T = TypeVar("T", bound=type)


def understand_old_names(cls: T) -> T:
    """Decorate a class so that its constructor takes keywords of transformers 4, where these are accepted.

    Tokens among the keywords are masked before the constructor runs, so that tracebacks do not show them.
    """
    plain: Any = cls.__init__
    if getattr(plain, "understands", False):
        return cls

    @functools.wraps(plain)
    def understanding(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = secret_values(kwargs)
        if accepted() and not self._old_names().isdisjoint(kwargs):
            kwargs = self._modernise(kwargs)
        plain(self, *args, **kwargs)

    marked: Any = understanding
    marked.understands = True
    cls.__init__ = marked
    return cls


def _parameters(init: Any) -> tuple[str, ...] | None:
    """Return the parameter names of a constructor; None if it takes any, or has no code object."""
    code = getattr(inspect.unwrap(init), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


_KEPT = "_given_by_old_names"
