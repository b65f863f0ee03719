"""The options of a script that is a trial of `lightrainer sweep`: its argparse parser gives them
the trial's values.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from .sweep_trial import this_trial

Parsed = tuple[argparse.Namespace, list[str]]
Parse = Callable[..., Parsed]


def parse_with_trial(
    parse: Parse,
    parser: argparse.ArgumentParser,
    args: Sequence[str] | None,
    namespace: argparse.Namespace | None,
) -> Parsed:
    """Parse the command line of a script with the values of its trial.

    An option gets its value even where a training argument has the same name, and null as None.
    Words of the sweep that the parser does not know are left out: another parser, or training
    arguments, may read them, and otherwise the training reports them.

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

    given = sys.argv[1:] if args is None else args
    words = [word for word in given if word not in trial.words.values()]
    nulls = []
    trial.is_parsed = True
    for name, value in {**trial.values, **trial.options}.items():
        option = _option(parser, name)
        if option is None:
            continue
        trial.read.add(name)
        if value is None:
            nulls.append(option.dest)
        elif name in trial.words:
            words.append(option.option_strings[0] + trial.words[name].removeprefix(f"--{name}"))

    parsed, rest = parse(parser, words, namespace)
    for name in nulls:  # no words of a command line mean None
        setattr(parsed, name, None)
    return parsed, rest


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    """Return the option of a parser that has this name, with underscores or with dashes; None if
    it has none.
    """
    declared = parser._option_string_actions
    return declared.get(f"--{name}") or declared.get(f"--{name.replace('_', '-')}")
