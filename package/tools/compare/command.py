"""The command `compare`: run a script with transformers and lightrainer, and compare results."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ...callbacks._files import write_atomically
from ..command_line import CommandParser, fraction
from .differences import compare as compare_results
from .report import as_dict, as_text
from .results import Results, read_results
from .runs import (
    LIGHTRAINER,
    REFERENCE,
    RESULT_FILE,
    CompareError,
    Script,
    check_reference,
    empty_folder,
    run_side,
)

_DESCRIPTION = """\
Run a script twice, unchanged: with the Trainer of transformers, and with that of lightrainer. Both
runs have the same arguments and the same seed. Each has its own process and its own copy of the
working folder. Then the metrics, all logged numbers, the final weights and files are compared, and
the differences are shown side by side. Nothing is uploaded.
"""
_EPILOG = """\
Options of `compare` go before the script; everything after it is passed to it.
Example: lightrainer compare train.py --output_dir out --max_steps 20

exit status: 0 if nothing differs, 1 if something does, 2 if nothing could be
compared
"""


def compare(flags: Sequence[str]) -> int:
    """Run the command line of a comparison.

    Args:
        flags: the words after `compare`.

    Returns:
        0 if nothing differs, 1 if something does, 2 if nothing could be compared.

    Raises:
        SystemExit: an option is invalid. The status is 2, and the reason is on stderr.
    """
    from ...lightning_modules.common.redaction import secret_words

    options = _make_parser().parse_args(secret_words(flags))
    folder = Path(options.folder or os.path.join("compare", Path(options.script).stem)).absolute()
    try:
        check_reference()
        script = _read_script(options)
        empty_folder(folder)
        reference = _run_and_read(script, REFERENCE, folder)
        lightrainer = _run_and_read(script, LIGHTRAINER, folder)
    except CompareError as error:
        print(f"lightrainer compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was compared.", file=sys.stderr)
        return 130
    comparisons = compare_results(reference, lightrainer, options.tolerance)

    # Delete the weights after each training, which were recorded only for the comparison.
    sides = (reference, lightrainer)
    for side in sides:
        for path in side.weights.values():
            path.unlink()

    # The file lists all differences, the terminal only the first ones.
    path = folder / RESULT_FILE
    summary = json.dumps(as_dict(sides, comparisons), indent=2)
    write_atomically(path, f"{summary}\n".encode())
    print(as_text(sides, comparisons))
    print(f"All differences: {os.path.relpath(path)}")
    return int(any(comparison.differences for comparison in comparisons))


def _make_parser() -> CommandParser:
    """Return the parser of the command."""
    usage = "lightrainer compare [options] SCRIPT [ARGUMENTS]"
    parser = CommandParser("compare", _DESCRIPTION, _EPILOG, usage)
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        help=(
            "folder for outputs, logs and comparison.json; by default compare/<name of the script>"
        ),
    )
    parser.add_argument(
        "--tolerance",
        type=fraction,
        default=0.0,
        metavar="X",
        help=(
            "relative tolerance of numbers; %(default)s means that they have to be equal to the "
            "last bit"
        ),
    )
    parser.add_argument(
        "--link",
        metavar="PATH",
        action="append",
        default=[],
        type=os.path.abspath,
        help=(
            "a file or folder that the script only reads and that is too large to copy; may be "
            "repeated"
        ),
    )
    parser.add_argument(
        "--launcher",
        default="",
        metavar="COMMAND",
        help="command that starts the script, e.g. 'torchrun --nproc_per_node=2' (Python)",
    )
    parser.add_script("the script, a Python file that imports transformers")
    return parser


def _read_script(options: Namespace) -> Script:
    """Return the script that the command line describes.

    Raises:
        CompareError: the script does not exist, or a linked path is not in the working folder.
    """
    if not os.path.isfile(options.script):
        raise CompareError(f"The script {options.script} does not exist.")
    working_folder = Path.cwd()
    linked = [Path(path) for path in options.link]
    for path in linked:
        if working_folder not in path.parents:
            raise CompareError(
                f"--link {path} is not in the working folder, so it is not copied. Remove --link."
            )
    # `compare train.py -- --lr 1` is accepted, too.
    arguments = options.words
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    return Script(
        path=Path(os.path.abspath(options.script)),
        working_folder=working_folder,
        linked=linked,
        arguments=arguments,
        launcher=shlex.split(options.launcher),
    )


def _run_and_read(script: Script, side: str, folder: Path) -> Results:
    """Run the script with the library of a side, and read the results."""
    name = "the reference" if side == REFERENCE else side
    print(f"running {os.path.relpath(script.path)} with {name} ...", flush=True)
    return read_results(run_side(script, side, folder / side))
