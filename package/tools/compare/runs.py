"""Run a script for a comparison, in its own process and copy of the working folder."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...interception import environment
from ...lightning_modules.common.libraries import is_installed
from ..watched_script import call_watched

REFERENCE = "reference"
LIGHTRAINER = "lightrainer"
WORK = "work"
"""The copy of the working folder, in the folder of a side."""
RESULT_FILE = "comparison.json"
"""The file with the result. It marks a folder that may be emptied for another comparison."""
LIMIT = 2 * 2**30
"""Maximum size of a copy of the working folder, in bytes."""
_NOT_COPIED = (".git", "__pycache__", "node_modules")
"""Names of folders that are not copied."""
_LAST_LINES = 15
"""Number of lines of a failed script's output that the error shows."""


class CompareError(Exception):
    """The script cannot be compared; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script to compare."""

    path: Path
    """Absolute path."""
    working_folder: Path
    linked: Collection[Path] = ()
    """Files and folders in the working folder that are linked instead of copied."""
    arguments: Sequence[str] = ()
    launcher: Sequence[str] = ()
    """The command that starts the script; empty for Python."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A completed run."""

    side: str
    folder: Path
    seconds: float
    """Wall time from the start of the process to its exit."""


def check_reference() -> None:
    """Check that the Trainer of transformers can be imported.

    Raises:
        CompareError: transformers or accelerate is not installed.
    """
    for package in ("transformers", "accelerate"):
        if not is_installed(package):
            raise CompareError(
                f"{package} is not installed, but the Trainer of transformers needs it: pip "
                "install transformers==5.3.0 accelerate"
            )


def empty_folder(folder: Path) -> None:
    """Create the folder of a comparison, and remove an earlier comparison from it.

    Raises:
        CompareError: the folder has other files, or cannot be written.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / RESULT_FILE).exists():
                raise CompareError(
                    f"--folder {folder} has files that are not from a comparison. Pass an empty "
                    "folder."
                )
            # The mark stays, so that a comparison that is killed here can be repeated.
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != RESULT_FILE:
                    path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompareError(f"--folder {folder}: {error.strerror}.") from None
    # Mark the folder now, so that a comparison that is interrupted can be repeated in it.
    (folder / RESULT_FILE).write_text("{}\n")


def copy_working_folder(script: Script, target: Path) -> None:
    """Copy the working folder, and link the paths in `script.linked`.

    Args:
        script: the script.
        target: the path of the copy.

    Raises:
        CompareError: the folder is too large.
    """
    copied_bytes = 0

    def names_to_ignore(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not _is_copied(script, Path(folder, name))]

    def copy(source: str, copied_path: str) -> None:
        nonlocal copied_bytes
        copied_bytes += os.path.getsize(source)
        if copied_bytes > LIMIT:
            raise CompareError(
                f"The folder {script.working_folder} has more than {LIMIT / 2**30:.0f} GiB, and "
                f"each side gets a copy. It stopped at {source}. Pass --link for large files and "
                "folders that the script only reads."
            )
        shutil.copy2(source, copied_path)

    shutil.copytree(script.working_folder, target, ignore=names_to_ignore, copy_function=copy)
    for path in script.linked:
        (target / path.relative_to(script.working_folder)).symlink_to(path)


def _is_copied(script: Script, path: Path) -> bool:
    """Return whether to copy a file or folder; sockets and broken links are left out."""
    if path in script.linked:
        return False
    if not path.is_dir():
        return path.is_file()

    # Leave out other comparisons, virtual environments and caches.
    is_comparison = (path / RESULT_FILE).exists()
    is_virtual_environment = (path / "pyvenv.cfg").exists()
    return not (is_comparison or is_virtual_environment or path.name in _NOT_COPIED)


def run_side(script: Script, side: str, folder: Path) -> Run:
    """Run the script with the library of a side, in a copy of the working folder.

    Args:
        script: the script.
        side: `reference` or `lightrainer`.
        folder: the folder for the side's log and its copy of the working folder.

    Raises:
        CompareError: the script failed; the message shows its last lines of output.
    """
    work = folder / WORK
    copy_working_folder(script, work)

    # If the script is in the working folder, run its copy.
    script_path = script.path
    if script.working_folder in script.path.parents:
        script_path = script.path.relative_to(script.working_folder)
    start = list(script.launcher) or [sys.executable]
    if side == LIGHTRAINER and not script.launcher:
        start += ["-m", "lightrainer"]

    log = folder / "log.txt"
    start_time = time.monotonic()
    with log.open("wb") as stream:
        status = call_watched(
            [*start, str(script_path), *script.arguments],
            cwd=work,
            env=_environment(side, folder),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    seconds = time.monotonic() - start_time
    if status != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        last_lines = "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])
        raise CompareError(
            f"The script failed with the {side} (exit status {status}), in a copy of "
            f"{script.working_folder}. Its last lines:\n\n{last_lines}"
        )
    return Run(side=side, folder=folder, seconds=seconds)


def _environment(side: str, folder: Path) -> dict[str, str]:
    """Return the environment variables of a side, which start the recorder in each process."""
    variables = dict(os.environ)
    environment.switch_on(variables)
    variables[environment.INSTALL] = "1" if side == LIGHTRAINER else "0"
    variables[environment.RECORDER] = str(Path(__file__).with_name("recorder.py"))
    variables["LIGHTRAINER_COMPARE"] = json.dumps({"side": side, "folder": str(folder)})
    variables["PWD"] = str(folder / WORK)
    variables.setdefault("PYTHONHASHSEED", "0")
    return variables
