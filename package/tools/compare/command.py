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
from typing import Any

from ..command_line import CommandParser, share, whole
from .differences import compare as compare_sides
from .findings import Findings, read_side
from .runs import (
    LIGHTRAINER,
    MARK,
    REFERENCE,
    CompareError,
    Script,
    WorkingFolder,
    check_reference,
    empty_folder,
    run_side,
)
from .verdict import Verdict, as_text, format_value

_DESCRIPTION = """\
Run a script twice, unchanged: with the Trainer of transformers, and with that of lightrainer. Both
runs have the same arguments and the same seed. Each has its own process and its own copy of the
working folder, so your files are not changed. Then the metrics, all logged numbers, the final
weights, files and the wall time are shown side by side, with the reasons for known differences.
Nothing is uploaded.
"""
_EPILOG = """\
Options of `compare` go before the script; everything after it is passed to it.
Example: lightrainer compare train.py --output_dir out --max_steps 20

exit status: 0 if nothing unexplained differs, 1 if something does, 2 if nothing
could be compared
"""


def compare(flags: Sequence[str]) -> int:
    """Run the command line of a comparison.

    Args:
        flags: the words after `compare`.

    Returns:
        0 if nothing unexplained differs, 1 if something does, 2 if nothing could be compared.

    Raises:
        SystemExit: an option is wrong. The status is 2, and the reason is on stderr.
    """
    from ...lightning_modules.common.redaction import secret_words

    options = _make_parser().parse_args(secret_words(flags))
    try:
        verdict, folder = _compare_script(options)
    except CompareError as error:
        print(f"lightrainer compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was compared.", file=sys.stderr)
        return 130

    # All differences go into the file, the first ones to the terminal.
    results = folder / MARK
    summary = json.dumps(_summary(verdict), indent=2)
    results.write_text(f"{summary}\n", encoding="utf-8")
    print(as_text(verdict))
    print(f"All differences: {os.path.relpath(results)}")
    return 1 if verdict.unexplained else 0


def _make_parser() -> CommandParser:
    usage = "lightrainer compare [options] SCRIPT [ARGUMENTS]"
    parser = CommandParser("compare", _DESCRIPTION, _EPILOG, usage)
    path_option: dict[str, Any] = {
        "metavar": "PATH",
        "action": "append",
        "default": [],
        "type": os.path.abspath,
    }
    add = parser.add_argument
    add(
        "--folder",
        metavar="FOLDER",
        help=(
            "folder for outputs, logs and comparison.json; by default compare/<name of the script>"
        ),
    )
    add(
        "--again",
        action="store_true",
        help="run transformers a second time, to check whether the script is deterministic",
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
        "--seed",
        type=whole(0, 2**32 - 1),
        default=0,
        metavar="N",
        help="seed for Python's and NumPy's generators, if the script sets none (%(default)s)",
    )
    add(
        "--root",
        type=os.path.abspath,
        metavar="FOLDER",
        help=(
            "the folder that is copied for each side, if not the working folder: one above it, if "
            "the script uses paths with .."
        ),
    )
    add(
        "--link",
        **path_option,
        help=(
            "a file or folder that the script only reads and that is too large to copy; may be "
            "repeated"
        ),
    )
    add(
        "--leave-out",
        **path_option,
        help="a file or folder that the script does not need; may be repeated",
    )
    add(
        "--launcher",
        default="",
        metavar="COMMAND",
        help="command that starts the script, e.g. 'torchrun --nproc_per_node=2' (Python)",
    )
    parser.add_script("the script, a Python file that imports transformers")
    return parser


def _compare_script(options: argparse.Namespace) -> tuple[Verdict, Path]:
    """Run both sides, and compare their results.

    Returns:
        The result, and the folder of the comparison.

    Raises:
        CompareError: an option is wrong, or a side fails.
    """
    check_reference()
    script = _read_script(options)
    folder = Path(options.folder or os.path.join("compare", script.path.stem)).absolute()
    empty_folder(folder)

    # Run both sides, and with --again the reference twice.
    reference = _run_and_read(script, REFERENCE, folder / REFERENCE)
    lightrainer = _run_and_read(script, LIGHTRAINER, folder / LIGHTRAINER)
    sides = [reference, lightrainer]
    is_deterministic = None
    if options.again:
        second = _run_and_read(script, REFERENCE, folder / "reference-again")
        sides.append(second)
        comparisons = compare_sides(reference, second, options.tolerance)
        is_deterministic = not any(comparison.differences for comparison in comparisons)

    verdict = Verdict(
        script=os.path.basename(options.script),
        script_arguments=list(script.arguments),
        reference=reference,
        lightrainer=lightrainer,
        comparisons=compare_sides(reference, lightrainer, options.tolerance),
        tolerance=options.tolerance,
        is_deterministic=is_deterministic,
    )

    # The weights after each training were recorded for the comparison only.
    for side in sides:
        for path in side.weights:
            path.unlink()
    return verdict, folder


def _read_script(options: argparse.Namespace) -> Script:
    """Return the script, with the folders to copy for it.

    Raises:
        CompareError: a path is wrong.
    """
    if not os.path.isfile(options.script):
        raise CompareError(f"The script {options.script} does not exist.")
    arguments = options.words
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    path = Path(os.path.abspath(options.script))

    # The copied folder contains the working folder, and everything that is linked.
    working_folder = Path.cwd()
    root = Path(options.root or working_folder)
    if root not in (working_folder, *working_folder.parents):
        raise CompareError(
            f"--root {root} does not contain the working folder {working_folder}. Pass a folder "
            "above it."
        )
    linked = {Path(name) for name in options.link}
    left_out = {Path(name) for name in options.leave_out}
    for link in linked:
        if root not in link.parents:
            raise CompareError(
                f"--link {link} is not in {root}: pass a folder that contains it as --root."
            )

    # The folder of a script outside of it is copied too.
    folders = [WorkingFolder(path=root, linked=linked, left_out=left_out)]
    if root not in path.parents:
        folders.append(WorkingFolder(path=path.parent, linked=linked, left_out=left_out))
    return Script(
        path=path,
        working_folder=working_folder,
        folders=folders,
        arguments=arguments,
        launcher=shlex.split(options.launcher),
        seed=options.seed,
    )


def _run_and_read(script: Script, side: str, folder: Path) -> Findings:
    """Run the script on a side, and read its results."""
    name = "the reference" if side == REFERENCE else side
    print(f"running {os.path.relpath(script.path)} with {name} ...", flush=True)
    return read_side(run_side(script, side, folder))


def _summary(verdict: Verdict) -> dict[str, object]:
    """Return the content of `comparison.json`."""
    differences = []
    for difference, known in verdict.reasons:
        entry = {
            "what": difference.group,
            "name": difference.name,
            "reference": format_value(difference.reference),
            "lightrainer": format_value(difference.lightrainer),
            "largest": difference.size,
            "known": None if known is None else known.name,
        }
        differences.append(entry)

    sides = []
    for side in verdict.sides:
        sides.append({"version": side.version, "seconds": round(side.run.seconds, 2)})
    return {
        "script": verdict.script,
        "arguments": verdict.script_arguments,
        "conclusion": verdict.conclusion(),
        "compared": verdict.rows(),
        "differences": differences,
        "sides": sides,
    }
