"""Give the options of a script that is a trial of `lightrainer sweep` the trial's values."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .sweep_trial import this_trial

ParsedWords = tuple[argparse.Namespace, list[str]]
"""What `parse_known_args` returns: the options, and the words that the parser does not know."""


def parse_with_trial(
    parse: Callable[..., ParsedWords],
    parser: argparse.ArgumentParser,
    args: Sequence[str] | None,
    namespace: argparse.Namespace | None,
) -> ParsedWords:
    """Parse the command line of a script with the values of its trial.

    Each option that the trial names gets the trial's value, even if a training argument has the
    same name; null becomes None. Words of the trial for options that this parser does not have are
    removed: another parser or training arguments may read them. If none does, the training reports
    it.

    Args:
        parse: `argparse.ArgumentParser.parse_known_args`.
        parser: The parser of the script.
        args: See `parse`.
        namespace: See `parse`.
    """
    trial = this_trial()
    if trial is None:
        return parse(parser, args, namespace)
    if parser._subparsers is not None:
        # The parser of a subcommand reads the words inside of argparse, without this function. So
        # assume that it reads all of them.
        trial.read_names.update(trial.options)
        return parse(parser, args, namespace)

    # Replace the words of the sweep by the spelling of the script's options. A word of the user
    # that is equal to one of them has the same value.
    if args is None:
        args = sys.argv[1:]
    words = [word for word in args if word not in trial.words.values()]
    null_options: list[str] = []
    trial.is_parsed = True
    for name, value in (trial.values | trial.options).items():
        option = _option(parser, name)
        if option is None:
            continue
        trial.read_names.add(name)
        if value is None:
            null_options.append(option.dest)
        elif name in trial.words:
            words.append(option.option_strings[0] + trial.words[name].removeprefix(f"--{name}"))

    # No word of a command line means None.
    parsed, unknown_words = parse(parser, words, namespace)
    for name in null_options:
        setattr(parsed, name, None)
    return parsed, unknown_words


def remove_words_of_trial() -> None:
    """Remove the words of the sweep from `sys.argv` in its script, once that has a parser.

    The parser gets the values without them, and a script whose only word is the name of a file of
    arguments still finds a single word.
    """
    trial = this_trial()
    if trial is None:
        return
    is_script_of_sweep = os.path.abspath(sys.argv[0]) == trial.script
    if is_script_of_sweep:
        words_of_trial = trial.words.values()
        sys.argv[:] = [word for word in sys.argv if word not in words_of_trial]


def values_of_trial(parser: argparse.ArgumentParser, names: set[str]) -> dict[str, Any]:
    """Return the values of the trial for fields that a script reads from a file or a dict.

    Args:
        parser: The parser, which has an option for each field.
        names: The names of the fields.
    """
    trial = this_trial()
    if trial is None:
        return {}
    trial.is_parsed = True
    values: dict[str, Any] = trial.values | trial.options
    names = names & values.keys()
    trial.read_names |= names

    read_values: dict[str, Any] = {}
    for name in names:
        value = values[name]
        option = _option(parser, name)

        # An option that takes several words has a list.
        takes_list = option is not None and option.nargs == "+"
        if takes_list and value is not None:
            value = [value]
        read_values[name] = value
    return read_values


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    """Return the option with this name, with underscores or dashes; None without one."""
    # argparse has no public way to find an option.
    options = parser._option_string_actions
    return options.get(f"--{name}") or options.get(f"--{name.replace('_', '-')}")
