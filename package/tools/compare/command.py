"""The command `compare`: run a script with the reference and with ours, and show the
differences.
"""

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
from .verdict import Verdict, as_text, shown

_DESCRIPTION = """\
Run a script twice, unchanged: with the Trainer of transformers, and with that of lightrainer. Both
runs have the same arguments and the same seed, each has a process and a copy of the working folder
of its own, so that nothing of yours is changed. Then metrics, every logged number, final weights,
files and wall time are shown side by side, with the reasons of known differences. Nothing is
uploaded.
"""
_EPILOG = """\
All that follows the script is passed on to it; options of `compare` stand before.
Example: lightrainer compare train.py --output_dir out --max_steps 20

exit status: 0 if nothing unexplained differs, 1 if something does, 2 if nothing could be compared
"""


def compare(flags: Sequence[str]) -> int:
    """Run the command line of a comparison.

    Args:
        flags: The words after `compare`.

    Returns:
        0 if nothing unexplained differs, 1 if something does, 2 if nothing could be compared.

    Raises:
        SystemExit: With status 2 and the reason on stderr where an option is wrong.
    """
    from ...lightning_modules.common.redaction import secret_words

    options = _parser().parse_args(secret_words(flags))
    try:
        verdict, folder = _compared(options)
    except CompareError as error:
        print(f"lightrainer compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was compared.", file=sys.stderr)
        return 130
    results = folder / MARK
    results.write_text(json.dumps(_summary(verdict), indent=2) + "\n", encoding="utf-8")
    print(as_text(verdict), f"All differences: {os.path.relpath(results)}", sep="\n")
    return 1 if verdict.unexplained else 0


def _parser() -> CommandParser:
    usage = "lightrainer compare [options] SCRIPT [ARGUMENTS]"
    parser = CommandParser("compare", _DESCRIPTION, _EPILOG, usage)
    again = "run the reference a second time, to check whether the script is deterministic"
    folder = "for outputs, logs and comparison.json; by default compare/<name of the script>"
    close = (
        "numbers that differ by no more than this share of the larger one are equal (%(default)g: "
        "to the last bit)"
    )
    launcher = "what starts the script, such as 'torchrun --nproc_per_node=2'; by default Python"
    seed = "of Python's and NumPy's generators, where the script sets none (%(default)s)"
    root = (
        "what each side gets a copy of, if not the working folder: one above it, for what the "
        "script reaches by .."
    )
    paths: dict[str, Any] = {
        "metavar": "PATH",
        "action": "append",
        "default": [],
        "type": os.path.abspath,
    }
    add = parser.add_argument
    add("--folder", metavar="FOLDER", help=folder)
    add("--again", action="store_true", help=again)
    add("--tolerance", type=share, default=0.0, metavar="X", help=close)
    add("--seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help=seed)
    add("--root", type=os.path.abspath, metavar="FOLDER", help=root)
    add(
        "--link",
        **paths,
        help=(
            "a file or folder that the script only reads, too large to be copied; may be repeated"
        ),
    )
    add(
        "--leave-out",
        **paths,
        help="a file or folder that the script does not need; may be repeated",
    )
    add("--launcher", default="", metavar="COMMAND", help=launcher)
    add("script", metavar="SCRIPT", help="the script, a Python file that imports transformers")
    add("words", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="those of the script")
    return parser


def _compared(options: argparse.Namespace) -> tuple[Verdict, Path]:
    """Run both sides, and compare their results.

    Returns:
        The result, and the folder of the comparison.

    Raises:
        CompareError: An option is wrong, or a side fails.
    """
    check_reference()
    script = _script(options)
    folder = empty_folder(
        Path(options.folder or os.path.join("compare", script.path.stem)).absolute()
    )

    # Run both, and with `--again` the reference twice.
    reference = _side(script, REFERENCE, folder / REFERENCE)
    ours = _side(script, LIGHTRAINER, folder / LIGHTRAINER)
    sides = [reference, ours]
    repeats_itself = None
    if options.again:
        second = _side(script, REFERENCE, folder / "reference-again")
        sides.append(second)
        repeats_itself = not any(
            group.differences for group in compare_sides(reference, second, options.tolerance)
        )

    verdict = Verdict(
        script=os.path.basename(options.script),
        words=list(script.words),
        reference=reference,
        lightrainer=ours,
        compared=compare_sides(reference, ours, options.tolerance),
        tolerance=options.tolerance,
        repeats_itself=repeats_itself,
    )

    # The weights after each training were recorded for the comparison only.
    for side in sides:
        for path in side.weights:
            path.unlink()
    return verdict, folder


def _script(options: argparse.Namespace) -> Script:
    """Return the script and the folders that are copied for it."""
    if not os.path.isfile(options.script):
        raise CompareError(f"{options.script}: there is no such script.")
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    path = Path(os.path.abspath(options.script))

    # The copied folder holds the working folder, and all that is linked.
    here = Path.cwd()
    root = Path(options.root or here)
    if root not in (here, *here.parents):
        raise CompareError(f"--root {root} does not hold the working folder {here}.")
    linked = {Path(name) for name in options.link}
    left_out = {Path(name) for name in options.leave_out}
    outside = [str(link) for link in linked if root not in link.parents]
    if outside:
        raise CompareError(
            f"--link {outside[0]} is not in {root}: name a folder that holds it with --root."
        )

    # A script that lies elsewhere has a copy of its own folder, too.
    folders = [WorkingFolder(path=root, linked=linked, left_out=left_out)]
    if root not in path.parents:
        folders.append(WorkingFolder(path=path.parent, linked=linked, left_out=left_out))
    launcher = shlex.split(options.launcher)
    return Script(
        path=path, here=here, folders=folders, words=words, launcher=launcher, seed=options.seed
    )


def _side(script: Script, side: str, folder: Path) -> Findings:
    print(
        f"running {os.path.relpath(script.path)} with {'the ' * (side == REFERENCE)}{side} ...",
        flush=True,
    )
    return read_side(run_side(script, side, folder))


def _summary(verdict: Verdict) -> dict[str, object]:
    return {
        "script": verdict.script,
        "arguments": verdict.words,
        "conclusion": verdict.conclusion(),
        "compared": verdict.rows(),
        "differences": [
            {
                "what": difference.group,
                "name": difference.name,
                "reference": shown(difference.reference),
                "lightrainer": shown(difference.lightrainer),
                "largest": difference.size,
                "known": known and known.name,
            }
            for difference, known in verdict.reasons
        ],
        "sides": [
            {"version": side.version, "seconds": round(side.run.seconds, 2)}
            for side in verdict.sides
        ],
    }
