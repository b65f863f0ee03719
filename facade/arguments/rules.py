"""Rules about training arguments, each with the fields that it reads, and common kinds of them."""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean

Rule = Callable[[Any], Iterable[str]]
"""Yields one sentence for each error in the arguments."""


_RULES: list[tuple[frozenset[str], Rule]] = []
"""Rules, each with the fields that it reads."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorate a rule that reads these fields."""

    def register(function: Rule) -> Rule:
        _RULES.append((frozenset(names), function))
        return function

    return register


def errors(args: Any, names: Collection[str] | None, skip: Collection[str]) -> list[str]:
    """Return the errors of all rules that read no field in `skip` and, if given, only fields in `names`.

    Rules about fields that these arguments do not have are skipped.
    """
    return [
        error
        for read, function in _RULES
        if read.isdisjoint(skip) and (names is None or read <= set(names)) and all(hasattr(args, n) for n in read)
        for error in function(args)
    ]


def in_range(name: str, low: float, high: float = math.inf, *, below: float | None = None, remedy: str = "") -> Rule:
    """Return a rule: a number is at least `low`, at most `high` and, if given, less than `below`.

    None passes: if the field does not accept it, the type check reports it.
    """
    bounds = [f"at least {low:g}"]
    bounds += [f"at most {high:g}"] if high < math.inf else []
    bounds += [] if below is None else ["finite" if below == math.inf else f"below {below:g}"]

    def check(args: Any) -> Iterable[str]:
        value = getattr(args, name)
        if value is not None and not (low <= value <= high and (below is None or value < below)):
            yield f"{name}={value!r} must be {' and '.join(bounds)}.{remedy}"

    return check


def choice_errors(name: str, value: Any, choices: Collection[str | None]) -> list[str]:
    """Return an error for a value that is none of `choices`."""
    if value in choices:
        return []
    names = [choice for choice in choices if choice is not None]
    return [f"{name}={value!r} is not known.{did_you_mean(value, names)} Choose from: {', '.join(names)}."]


def member_errors(name: str, value: Any, kind: Callable[[Any], Any]) -> list[str]:
    """Return an error for a value that no member of the enumeration `kind` has."""
    try:
        kind(value)
    except ValueError as error:
        yaml = " YAML reads a bare no as False; write 'no'." if value is False else ""
        return [f"{name}={value!r}: {error}{yaml}"]
    return []


def with_article(noun: str) -> str:
    """Return "an int" for "int"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
