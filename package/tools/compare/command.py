"""The command `compare`: run a script with transformers and with lightrainer, and compare them."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..command_line import CommandParser, share
from .differences import compare as compare_sides
from .findings import Findings, read_side
from .report import as_dict, as_text
from .runs import (
    LIGHTRAINER,
    MARK,
    REFERENCE,
    CompareError,
    Script,
    check_reference,
    empty_folder,
    run_side,
)

_DESCRIPTION = """\
Run a script twice, unchanged: with the Trainer of transformers, and with that of lightrainer. Both
runs have the same arguments and the same seed. Each has its own process and its own copy of the
working folder. Then the metrics, all logged numbers, the final weights, files and the wall time are
shown side by side. Nothing is uploaded.
"""
_EPILOG = """\
Options of `compare` go before the script; everything after the script is passed to it.
Example: lightrainer compare train.py --output_dir out --max_steps 20

exit status: 0 if nothing differs, 1 if something does, 2 if nothing could be compared
"""


def compare(flags: Sequence[str]) -> int:
    """Run the command line of a comparison.

    Args:
        flags: the words after `compare`.

    Returns:
        0 if nothing differs, 1 if something does, 2 if nothing could be compared.

    Raises:
        SystemExit: an option is wrong. The status is 2, and the reason is on stderr.
    """
    from ...lightning_modules.common.redaction import secret_words

    options = _make_parser().parse_args(secret_words(flags))
    folder = Path(options.folder or os.path.join("compare", Path(options.script).stem)).absolute()
    try:
        check_reference()
        script = _read_script(options)
        empty_folder(folder)
        sides = (
            _run_and_read(script, REFERENCE, folder),
            _run_and_read(script, LIGHTRAINER, folder),
        )
    except CompareError as error:
        print(f"lightrainer compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was compared.", file=sys.stderr)
        return 130
    comparisons = compare_sides(*sides, options.tolerance)

    # The weights after each training were recorded for the comparison only.
    for side in sides:
        for path in side.weights:
            path.unlink()

    # All differences go into the file, the first ones to the terminal.
    results = folder / MARK
    summary = json.dumps(as_dict(sides, comparisons), indent=2)
    results.write_text(f"{summary}\n", encoding="utf-8")
    print(as_text(sides, comparisons))
    print(f"All differences: {os.path.relpath(results)}")
    return int(any(comparison.differences for comparison in comparisons))


def _make_parser() -> CommandParser:
    usage = "lightrainer compare [options] SCRIPT [ARGUMENTS]"
    parser = CommandParser("compare", _DESCRIPTION, _EPILOG, usage)
    add = parser.add_argument
    add(
        "--folder",
        metavar="FOLDER",
        help=(
            "folder for outputs, logs and comparison.json; by default compare/<name of the script>"
        ),
    )
    add(
        "--tolerance",
        type=share,
        default=0.0,
        metavar="X",
        help=(
            "relative tolerance of numbers; %(default)s means that they have to be equal to the "
            "last bit"
        ),
    )
    add(
        "--link",
        metavar="PATH",
        action="append",
        default=[],
        type=lambda path: Path(os.path.abspath(path)),
        help=(
            "a file or folder that the script does not write to and that is too large to copy; may "
            "be repeated"
        ),
    )
    add(
        "--launcher",
        default="",
        metavar="COMMAND",
        help="command that starts the script, e.g. 'torchrun --nproc_per_node=2' (Python)",
    )
    add("script", metavar="SCRIPT", help="the script, a Python file that imports transformers")
    add(
        "words",
        metavar="ARGUMENTS",
        nargs=argparse.REMAINDER,
        help="arguments for the script",
    )
    return parser


def _read_script(options: argparse.Namespace) -> Script:
    """Return the script.

    Raises:
        CompareError: a path is wrong.
    """
    if not os.path.isfile(options.script):
        raise CompareError(f"The script {options.script} does not exist.")
    for path in options.link:
        if Path.cwd() not in path.parents:
            raise CompareError(
                f"--link {path} is not in the working folder, so it is not copied. Remove --link."
            )
    arguments = options.words
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    return Script(
        path=Path(os.path.abspath(options.script)),
        linked=options.link,
        arguments=arguments,
        launcher=shlex.split(options.launcher),
    )


def _run_and_read(script: Script, side: str, folder: Path) -> Findings:
    """Run the script on a side, and read its results."""
    name = "the reference" if side == REFERENCE else side
    print(f"running {os.path.relpath(script.path)} with {name} ...", flush=True)
    return read_side(run_side(script, side, folder / side))
