"""`lightrainer compare`: the command line."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..number_options import whole
from . import page, text
from .differences import compare as compare_sides
from .reading import Findings, read_side
from .sides import LIGHTRAINER, MARK, REFERENCE, Script, check_reference, empty_folder, run_side
from .verdict import Verdict
from .working_folder import CompareError, WorkingFolder

_DESCRIPTION = """\
Run a script twice, unchanged: with the Trainer of transformers, and with that of lightrainer. Both runs have the same
arguments and the same seed, each has a process and a copy of the working folder of its own: what the script writes goes
there, and nothing of yours is changed. Then metrics, every logged number,
final weights, files, wall time and memory are shown side by side; which differences are known and why, and which are
not. There is a page in HTML, too. Nothing is uploaded.
"""
_EPILOG = """\
All that follows the script is passed on to it; options of `compare` stand before.
Example: lightrainer compare train.py --output_dir out --max_steps 20

exit status: 0 if nothing unexplained differs, 1 if something does, 2 if nothing could be compared
"""


def compare(flags: Sequence[str]) -> int:
    """Run the command line of a comparison; there is no such command in the reference.

    Args:
        flags: The words after `compare`.

    Returns:
        0 if nothing unexplained differs, 1 if something does, 2 if nothing could be compared.

    Raises:
        SystemExit: With status 2 and the reason on stderr where an option cannot be.
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
    place = folder / "index.html"
    place.write_text(page.render(verdict), encoding="utf-8")
    (folder / MARK).write_text(json.dumps(_summary(verdict), indent=2) + "\n", encoding="utf-8")
    print(text.render(verdict, str(place)), end="")
    return 1 if verdict.unexplained else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrainer compare",
        usage="lightrainer compare [options] SCRIPT [ARGUMENTS]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    again = "run the reference a second time, to see whether the script repeats itself"
    close = "numbers that differ by no more than this share of the larger one are equal (%(default)g: to the last bit)"
    launcher = "what starts the script, such as 'torchrun --nproc_per_node=2'; by default Python"
    seed = "of Python's and NumPy's generators, where the script sets none (%(default)s)"
    paths: dict[str, Any] = {"metavar": "PATH", "action": "append", "default": [], "type": os.path.abspath}
    add = parser.add_argument
    add("--folder", metavar="FOLDER", help="for outputs, logs and the page; by default compare/<name of the script>")
    add("--again", action="store_true", help=again)
    add("--tolerance", type=_share, default=0.0, metavar="X", help=close)
    add("--seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help=seed)
    add("--link", **paths, help="a file or folder that the script only reads, too large to be copied; may be repeated")
    add("--leave-out", **paths, help="a file or folder that the script does not need; may be repeated")
    add("--launcher", default="", metavar="COMMAND", help=launcher)
    add("script", metavar="SCRIPT", help="the script, a Python file that imports transformers")
    add("words", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="those of the script")
    return parser


def _share(written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{written!r} is not a number") from None
    if not (math.isfinite(number) and 0 <= number < 1):
        raise argparse.ArgumentTypeError(f"{written!r} has to be at least 0 and below 1")
    return number


def _compared(options: argparse.Namespace) -> tuple[Verdict, Path]:
    """Run both sides, and look at what they left."""
    if not os.path.isfile(options.script):
        raise CompareError(f"{options.script}: there is no such script.")
    check_reference()
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    path, here = Path(os.path.abspath(options.script)), Path.cwd()
    linked, left_out = ({Path(one) for one in named} for named in (options.link, options.leave_out))
    script = Script(
        path=str(path.relative_to(here) if here in path.parents else path),
        folder=WorkingFolder(path=here, mark=MARK, linked=linked, left_out=left_out),
        words=words,
        launcher=shlex.split(options.launcher),
        seed=options.seed,
    )
    folder = empty_folder(Path(options.folder or os.path.join("compare", Path(options.script).stem)).absolute())
    reference, ours = (_side(script, side, folder / side) for side in (REFERENCE, LIGHTRAINER))
    compared = compare_sides(reference, ours, options.tolerance)
    repeats = None
    if options.again:
        again = _side(script, REFERENCE, folder / "reference-again")
        repeats = not any(group.differences for group in compare_sides(reference, again, options.tolerance))
        _remove_weights(again)
    for side in (reference, ours):
        _remove_weights(side)
    verdict = Verdict(
        script=os.path.basename(options.script),
        words=list(words),
        reference=reference,
        lightrainer=ours,
        compared=compared,
        tolerance=options.tolerance,
        repeats_itself=repeats,
    )
    return verdict, folder


def _side(script: Script, side: str, folder: Path) -> Findings:
    print(
        f"running {script.path} with the {side} ..." if side == REFERENCE else f"running it with {side} ...", flush=True
    )
    return read_side(run_side(script, side, folder))


def _remove_weights(found: Findings) -> None:
    """The models were recorded for the comparison alone."""
    for path in found.weights:
        path.unlink()


def _summary(verdict: Verdict) -> dict[str, object]:
    return {
        "script": verdict.script,
        "arguments": verdict.words,
        "conclusion": verdict.conclusion(),
        "compared": verdict.rows(),
        "known": {name: len(differences) for name, (_, differences) in verdict.known.items()},
        "unexplained": [f"{one.group}: {one.name}" for one in verdict.unexplained],
        "sides": [
            {"version": side.version, "seconds": round(side.run.seconds, 2), "peak_bytes": side.peak_bytes}
            for side in verdict.sides
        ],
    }
