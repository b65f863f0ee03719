"""Refuse unknown arguments with advice, and understand those of transformers 4 where they are
accepted.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Any, TypeVar

from ...lightning_modules.common.redaction import secret_values
from .old_names import OLD_NAMES, OldAttribute, accepted, advice, modernised

if TYPE_CHECKING:
    from typing import Self


class NamesItsArguments:
    """A class whose constructor refuses unknown keywords, with their new name or the nearest one.

    The check is in `__new__`, which gets all keywords, of subclasses too, before `__init__`; Python
    itself reports the first one only.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """As `object.__new__`, but unknown keywords are refused with advice.

        Raises:
            TypeError: see `refuse_unknown`.
        """
        kwargs = dict.fromkeys(kwargs)  # keep tokens out of tracebacks
        refuse_unknown(cls, kwargs)
        return super().__new__(cls)

    @classmethod
    def _advice(cls, name: str, known: Collection[str]) -> str:
        return f"{cls.__name__} has no such argument.{advice(name, known)}"

    @classmethod
    def _old_names(cls) -> Set[str]:
        return OLD_NAMES.keys() - getattr(cls, "__dataclass_fields__", {}).keys()

    def _modernise(self, given: dict[str, Any]) -> dict[str, Any]:
        old = self._old_names()
        current = modernised(given, old)
        # What no argument takes the place of can still be read.
        vars(self).update(
            (name, given[name]) for name in old if name in given and not OLD_NAMES[name].to
        )
        return current


for _name in OLD_NAMES:
    setattr(NamesItsArguments, _name, OldAttribute(_name))


def refuse_unknown(cls: Any, kwargs: dict[str, Any]) -> None:
    """Refuse keywords that the constructor of a class does not take.

    Args:
        cls: the class, which has the methods of `NamesItsArguments`.
        kwargs: the keywords.

    Raises:
        TypeError: Names each unknown keyword and a remedy, without its value: a misspelt one may
            have a secret.
    """
    code = getattr(inspect.unwrap(cls.__init__), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    unknown = [name for name in kwargs if name not in known]
    is_old = accepted() and not cls._old_names().isdisjoint(unknown)
    # The constructor of a subclass; those of this package are decorated.
    if (is_old or "hub_token" in known) and not hasattr(cls.__init__, "understands"):
        understand_old_names(cls)
    if is_old:
        unknown = [name for name in unknown if name not in cls._old_names()]
    if unknown:
        said = [f"{name}: {cls._advice(name, known)}" for name in unknown]
        several = (
            f"{len(said)} arguments that {cls.__name__} does not have:\n" if len(said) > 1 else ""
        )
        raise TypeError(several + "\n".join(said))


class SignatureOfInit:
    """Descriptor that gives a class with a generic `__new__` the signature of its `__init__`."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        """Return the signature without `self`."""
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


T = TypeVar("T", bound=type)


def understand_old_names(cls: T) -> T:
    """Decorate a class so that its constructor takes keywords of transformers 4, where these are
    accepted.

    Tokens among the keywords are masked before the constructor runs, so that tracebacks do not show
    them.
    """
    plain: Any = cls.__init__

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
