"""Write `docs/reference/command-line.md` from the commands' own help:
`python docs/scripts/command_line_page.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from lightrainer.__main__ import main

PAGE = Path(__file__).resolve().parents[1] / "reference" / "command-line.md"
INTRODUCTION = """\
# Command line

`lightrainer` and `python -m lightrainer` are the same. Any other word is the script to run:
`lightrainer train.py`.

This page is generated: `python docs/scripts/command_line_page.py`.
"""
OF_THEIR_OWN = ("run", "plan")  # whose options are those of the script, and the training arguments


def page() -> str:
    """Return the whole page."""
    whole = parser_of([])
    (commands,) = (
        action for action in whole._actions if isinstance(action, argparse._SubParsersAction)
    )
    sections = [INTRODUCTION, table(whole, "commands"), run_section()]
    sections += [section(command) for command in commands.choices if command not in OF_THEIR_OWN]
    sections.append(
        "## plan\n\nShow what training arguments become in Lightning; nothing is written, and no "
        "GPU is needed. Its\noptions are the [training arguments](arguments.md): `lightrainer "
        "plan --bf16 --learning_rate 1e-4`.\n"
    )
    return "\n".join(sections)


def run_section() -> str:
    """Return the output of `lightrainer run --help`."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main(["run", "--help"])
    return f"## run\n\n```text\n{output.getvalue().strip()}\n```\n"


def section(command: str) -> str:
    """Return a command: what it does, its options by group, what its help ends with."""
    parser = parser_of([command])
    groups = [table(parser, str(group.title)) for group in parser._action_groups]
    after = f"```text\n{parser.epilog.strip()}\n```\n" if parser.epilog else ""
    return "\n".join(filter(None, [f"## {command}\n\n{parser.description}\n", *groups, after]))


def parser_of(words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of a command, as it is when its help is asked for."""
    parsers: list[argparse.ArgumentParser] = []
    patch = mock.patch.object(
        argparse.ArgumentParser, "print_help", lambda self, file=None: parsers.append(self)
    )
    with patch, contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return parsers[0]


def table(parser: argparse.ArgumentParser, title: str) -> str:
    """Return the options of a group as a table; nothing where there are none but `--help`."""
    (group,) = (group for group in parser._action_groups if group.title == title)
    lines = "".join(rows(group._group_actions))
    return f"| {title} | |\n|---|---|\n{lines}" if lines else ""


def rows(actions: list[argparse.Action]) -> Iterator[str]:
    """Return one line for each option, without that of the help."""
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from rows(action._choices_actions)
        elif action.dest != "help":
            yield f"| `{name(action)}` | {escaped(help_of(action))} |\n"


def name(action: argparse.Action) -> str:
    """Return an option as it is written: its dashed name, and what follows it."""
    words = [word for word in action.option_strings if "_" not in word] or [
        str(action.metavar or action.dest)
    ]
    value = ""
    if action.option_strings and action.nargs != 0:
        value = str(
            action.metavar
            or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest)
        )
        value = " " + (value if action.metavar or action.choices else value.upper())
    return ", ".join(words) + value


def help_of(action: argparse.Action) -> str:
    """Return the help of an option, with its default filled in."""
    return (action.help or "") % {"default": action.default}


def escaped(text: str) -> str:
    """Text in a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
