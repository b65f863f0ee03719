"""Format the help of a command line."""

from __future__ import annotations

import copy
from argparse import SUPPRESS, Action, ArgumentDefaultsHelpFormatter
from typing import Any

from ..arguments.fields import CONCERNS

_MANY = 20
"""Options, from which number on the usage does not list them."""
_LONGEST_CHOICES = 60
"""Letters of choices that are shown as the value of an option."""
_VALUES = {"int": "INT", "float": "FLOAT", "to_bool": "BOOL", "to_dict": "JSON"}
"""The values of options in the help, by the name of the function that converts their text."""


def concern(kind: type, name: str) -> tuple[str, str] | None:
    """Return the heading of a field of the training arguments, and the sentence below the heading.

    Both follow from the class that declares the field first: a subclass may change its default.

    Args:
        kind: Any dataclass.
        name: One of its fields.

    Returns:
        None for a field that is not one of the training arguments.
    """
    # The last class of the MRO that has the field declared it.
    owner = next(
        base for base in reversed(kind.__mro__) if name in getattr(base, "__dataclass_fields__", ())
    )
    return next(
        (
            (heading, sentence)
            for heading, (sentence, owners) in CONCERNS.items()
            if owner in owners
        ),
        None,
    )


class ArgumentHelpFormatter(ArgumentDefaultsHelpFormatter):
    """As `argparse.ArgumentDefaultsHelpFormatter`, but with one spelling of each option and a short
    usage line.

    Long lists of choices follow an option's text instead of standing for its value; defaults None
    and False are hidden.
    """

    def __init__(self, prog: str, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_help_position", 32)
        super().__init__(prog, *args, **kwargs)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        actions = list(actions)
        if usage is not None or len(actions) <= _MANY:
            return super()._format_usage(usage, actions, groups, prefix)
        needed = [action for action in actions if action.required or not action.option_strings]
        return super()._format_usage(None, needed, [], prefix).rstrip("\n") + " [options]\n\n"

    def _format_action(self, action: Action) -> str:
        return super()._format_action(_shown(action))

    def _format_action_invocation(self, action: Action) -> str:
        shown = _shown(action)
        names = action.option_strings
        dashed = {name.replace("_", "-") for name in names if "_" in name}
        shown.option_strings = [name for name in names if name not in dashed]
        return super()._format_action_invocation(shown)

    def _get_help_string(self, action: Action) -> str | None:
        text = action.help or ""
        if action.choices and action.metavar is not None:
            text += f" One of: {', '.join(map(str, action.choices))}.".replace("%", "%%")
        # Defaults of flags that are off and of unset options are left out.
        off = action.default is False or action.nargs == 0
        if off or action.default in (None, SUPPRESS) or "%(default)" in text:
            return text
        value = str(getattr(action.default, "value", action.default)).replace("%", "%%")
        return f"{text} (default: {value or repr(value)})".lstrip()


def _shown(action: Action) -> Action:
    """Return a copy of an option for the help; its own attributes equal those of the reference."""
    shown = copy.copy(action)
    if f"--no_{action.dest}" in action.option_strings:
        shown.help = f"Turns --{action.dest} off."
    choices = ", ".join(map(str, action.choices or ()))
    if action.metavar is not None or action.nargs == 0 or not action.option_strings:
        return shown
    if len(choices) > _LONGEST_CHOICES:
        shown.metavar = "NAME"
    elif not choices:
        shown.metavar = _VALUES.get(getattr(action.type, "__name__", ""), "TEXT")
    return shown
