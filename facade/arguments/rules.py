"""What a rule about training arguments is, and the kinds of rule that there are many of."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean

Rule = Callable[[Any], "str | list[str] | None"]
"""Takes the arguments and says what is wrong: one sentence, several, or nothing."""


class RuleBook:
    """Rules, each with the fields that it looks at."""

    def __init__(self) -> None:
        self._rules: list[tuple[frozenset[str], Rule]] = []

    def add(self, *names: str) -> Callable[[Rule], Rule]:
        """Decorate a rule that looks at these fields."""

        def register(rule: Rule) -> Rule:
            self._rules.append((frozenset(names), rule))
            return rule

        return register

    def apply(self, args: Any, names: Collection[str] | None, skip: Collection[str]) -> list[str]:
        """Say what is wrong, by the rules that look at no field in `skip` and only at fields in `names`, if given.

        Rules about fields that these arguments do not have are left out.
        """
        said: list[str] = []
        for looked_at, rule in self._rules:
            asked = looked_at.isdisjoint(skip) and (names is None or looked_at <= set(names))
            if asked and all(hasattr(args, name) for name in looked_at):
                answer = rule(args)
                said += [answer] if isinstance(answer, str) else answer or []
        return said


@dataclass(frozen=True)
class Range:
    """A rule: a number is at least `low`, at most `high` and, where that is given, less than `below`.

    None is let through: where it is not a fair value, its type has been complained of.
    """

    name: str
    low: float
    high: float = math.inf
    below: float | None = None
    remedy: str = ""

    def __call__(self, args: Any) -> str | None:
        """Look at one field."""
        value = getattr(args, self.name)
        if value is None or (self.low <= value <= self.high and (self.below is None or value < self.below)):
            return None
        bounds = [f"at least {self.low:g}"]
        if self.high < math.inf:
            bounds.append(f"at most {self.high:g}")
        if self.below is not None:
            bounds.append("finite" if self.below == math.inf else f"below {self.below:g}")
        return f"{self.name}={value!r} must be {' and '.join(bounds)}.{self.remedy}"


@dataclass(frozen=True)
class OneOf:
    """A rule: a text is one of several."""

    name: str
    choices: tuple[str | None, ...]

    def __call__(self, args: Any) -> str | None:
        """Look at one field."""
        return not_a_choice(self.name, getattr(args, self.name), self.choices)


@dataclass(frozen=True)
class Member:
    """A rule: a field holds a member of an enumeration, or the text of one."""

    name: str
    kind: type[Enum]

    def __call__(self, args: Any) -> str | None:
        """Look at one field."""
        return not_a_member(self.name, getattr(args, self.name), self.kind)


def not_a_choice(name: str, value: Any, choices: Collection[str | None]) -> str | None:
    """What to say of a value that is none of `choices`; None if it is one."""
    if value in choices:
        return None
    names = [choice for choice in choices if choice is not None]
    return f"{name}={value!r} is not known.{did_you_mean(value, names)} Choose from: {', '.join(names)}."


def not_a_member(name: str, value: Any, kind: type[Enum]) -> str | None:
    """What to say of a value that no member of `kind` has; None if one has it."""
    try:
        kind(value)
    except ValueError as error:
        off = " YAML reads a bare no as False; write 'no'." if value is False else ""
        return f"{name}={value!r}: {error}{off}"
    return None
