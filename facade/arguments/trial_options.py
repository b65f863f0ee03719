"""The options of a script that is a trial of `lightrainer sweep`: its argparse parser gives them the trial's values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .sweep_trial import ChildTrial, this_trial

Parsed = tuple[argparse.Namespace, list[str]]
Parse = Callable[..., Parsed]


def parse_with_trial(
    parse: Parse,
    parser: argparse.ArgumentParser,
    args: Sequence[str] | None,
    namespace: argparse.Namespace | None,
) -> Parsed:
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
        # The parser of the command reads the words as they are.
        trial.read.update(trial.options)
        return parse(parser, args, namespace)

    words = sys.argv[1:] if args is None else list(args)
    values = _values_for(trial, words)
    known = _known_options(parser, values)
    trial.is_parsed = True
    trial.read.update(known)

    # Each option takes its value in the form of its declaration, in place of the words of the sweep.
    words = _without_sweep(trial, words)
    for name, option in known.items():
        if values[name] is not None:
            words += _words(option, values[name])
    parsed, rest = parse(parser, words, namespace)

    # No words of a command line mean None.
    for name, option in known.items():
        if values[name] is None:
            setattr(parsed, option.dest, None)
    return parsed, rest


def _values_for(trial: ChildTrial, words: Sequence[str]) -> dict[str, Any]:
    """Return the values that options of a parser may take, by name.

    Args:
        trial: the trial.
        words: of the parser: the whole command line, or those that another parser has left.
    """
    if words == sys.argv[1:]:
        return trial.values | trial.options
    return {name: value for name, value in trial.options.items() if name not in trial.read}


def _known_options(parser: argparse.ArgumentParser, names: Iterable[str]) -> dict[str, argparse.Action]:
    """Return the options of a parser that have one of these names, with underscores or with dashes."""
    declared = parser._option_string_actions
    known: dict[str, argparse.Action] = {}
    for name in names:
        option = declared.get(f"--{name}")
        if option is None:
            option = declared.get(f"--{name.replace('_', '-')}")
        if option is not None:
            known[name] = option
    return known


def _without_sweep(trial: ChildTrial, words: list[str]) -> list[str]:
    """Return words without those that the sweep has added at their end."""
    count = len(trial.words)
    if count and words[-count:] == trial.words:
        return words[:-count]
    return words


def _words(option: argparse.Action, value: Any) -> Sequence[str]:
    """Return the words that give an option its value."""
    name = option.option_strings[0]
    if option.nargs != 0:
        return [f"{name}={value}"]
    if value in (True, "True", "true"):
        return [name]
    # `argparse.BooleanOptionalAction` has --no-name besides.
    return [string for string in option.option_strings if string.startswith("--no-")][:1]
