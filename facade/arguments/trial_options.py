"""The options of a script that is a trial of `lightrainer sweep`: its argparse parser gives them the trial's values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .sweep_trial import this_trial

Parse = Callable[..., tuple[argparse.Namespace, list[str]]]


def parse_with_trial(parse: Parse, parser: argparse.ArgumentParser, args: Any, namespace: Any) -> Any:
    """Parse the command line of a script with the values of its trial.

    An option gets its value even where a training argument has the same name, null as None, and a flag that is declared
    with `action="store_true"` as one. Words of the sweep that the parser does not know are left out: another parser, or
    training arguments, may read them, and otherwise the training reports them.

    Args:
        parse: `argparse.ArgumentParser.parse_known_args`.
        parser: of the script.
        args: its parameters.
        namespace: its parameters.
    """
    trial = this_trial()
    if trial is None:
        return parse(parser, args, namespace)
    if parser._subparsers is not None:
        trial.read.update(trial.options)  # the parser of the command reads the words as they are
        return parse(parser, args, namespace)

    words = sys.argv[1:] if args is None else list(args)
    values = {name: value for name, value in trial.options.items() if name not in trial.read}
    if words == sys.argv[1:]:
        values = trial.values | trial.options
    if trial.words and words[-len(trial.words) :] == trial.words:
        words = words[: -len(trial.words)]
    trial.is_parsed = True
    nulls = []
    for name, value in values.items():
        known = parser._option_string_actions
        action = known.get(f"--{name}") or known.get(f"--{name.replace('_', '-')}")
        if action is None:
            continue
        trial.read.add(name)
        if value is None:
            nulls.append(action.dest)
        else:
            words += _words(action, value)
    parsed, rest = parse(parser, words, namespace)
    for name in nulls:
        setattr(parsed, name, None)
    return parsed, rest


def _words(action: argparse.Action, value: Any) -> Sequence[str]:
    """Return the words that give an option its value."""
    option = action.option_strings[0]
    if action.nargs != 0:
        return [f"{option}={value}"]
    if value in (True, "True", "true"):
        return [option]
    # `argparse.BooleanOptionalAction` has --no-name besides.
    return [name for name in action.option_strings if name.startswith("--no-")][:1]
