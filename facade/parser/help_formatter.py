"""Format the help of a command line."""

from __future__ import annotations

import copy
from argparse import SUPPRESS, Action, ArgumentDefaultsHelpFormatter
from collections.abc import Iterable
from typing import Any

from ..arguments.fields import CONCERNS

_MOST_OPTIONS_IN_USAGE = 20
"""A usage line of more options lists the required ones only."""
_LONGEST_CHOICES = 60
"""Longest list of choices, in letters, that stands for the value of an option."""
_METAVARS = {"int": "INT", "float": "FLOAT", "to_bool": "BOOL", "to_dict": "JSON"}
"""How the help names the value of an option, by the name of the function that converts it."""


def argument_group_of(dataclass_type: type, field_name: str) -> tuple[str, str] | None:
    """Return title and description of the argument group of a training argument.

    Both follow from the class that declares the field first: a subclass may change its default.

    Args:
        dataclass_type: Any dataclass.
        field_name: One of its fields.

    Returns:
        None for a field that is not one of the training arguments.
    """
    # The last class of the MRO that has the field declared it.
    declaring_class = dataclass_type
    for base in dataclass_type.__mro__:
        if field_name in getattr(base, "__dataclass_fields__", ()):
            declaring_class = base

    for title, (description, classes) in CONCERNS.items():
        if declaring_class in classes:
            return title, description
    return None


class ArgumentHelpFormatter(ArgumentDefaultsHelpFormatter):
    """As `argparse.ArgumentDefaultsHelpFormatter`, but shorter.

    Each option is shown in one spelling, and the usage line has at most the required options of a
    long list. Many choices follow the text of an option instead of standing for its value; the
    defaults None and False are not shown.
    """

    def __init__(self, prog: str, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_help_position", 32)
        super().__init__(prog, *args, **kwargs)

    def _format_usage(
        self,
        usage: str | None,
        actions: Iterable[Action],
        groups: Iterable[Any],
        prefix: str | None,
    ) -> str:
        actions = list(actions)
        if usage is not None or len(actions) <= _MOST_OPTIONS_IN_USAGE:
            return super()._format_usage(usage, actions, groups, prefix)

        # Positional arguments have no option strings.
        required = [action for action in actions if action.required or not action.option_strings]
        required_usage = super()._format_usage(None, required, [], prefix)
        return required_usage.rstrip("\n") + " [options]\n\n"

    def _format_action(self, action: Action) -> str:
        return super()._format_action(_copy_for_help(action))

    def _format_action_invocation(self, action: Action) -> str:
        """Leave out the spellings with dashes of options that have underscores."""
        shown = _copy_for_help(action)
        option_strings = action.option_strings
        dashed = {name.replace("_", "-") for name in option_strings if "_" in name}
        shown.option_strings = [name for name in option_strings if name not in dashed]
        return super()._format_action_invocation(shown)

    def _get_help_string(self, action: Action) -> str | None:
        """Return the text of an option, with its choices and its default.

        argparse formats the text with `%`, so that signs in values are doubled.
        """
        text = action.help or ""
        if action.choices and action.metavar is not None:
            choices = ", ".join(map(str, action.choices))
            text += f" One of: {choices}.".replace("%", "%%")

        # The defaults of flags that are off and of unset options say nothing.
        is_off = action.default is False or action.nargs == 0
        if is_off or action.default in (None, SUPPRESS) or "%(default)" in text:
            return text

        # An enumeration's member is shown as its value, and empty text as ''.
        default = str(getattr(action.default, "value", action.default)).replace("%", "%%")
        if not default:
            default = repr(default)
        return f"{text} (default: {default})".lstrip()


def _copy_for_help(action: Action) -> Action:
    """Return a copy of an option with a short metavar, and the help of `--no_x`.

    The attributes of the option itself equal those of the reference.
    """
    shown = copy.copy(action)
    if f"--no_{action.dest}" in action.option_strings:
        shown.help = f"Turns --{action.dest} off."

    # Flags and positional arguments have no metavar to replace.
    if action.metavar is not None or action.nargs == 0 or not action.option_strings:
        return shown

    choices = ", ".join(map(str, action.choices or ()))
    if len(choices) > _LONGEST_CHOICES:
        shown.metavar = "NAME"
    elif not choices:
        type_name = getattr(action.type, "__name__", "")
        shown.metavar = _METAVARS.get(type_name, "TEXT")
    return shown
