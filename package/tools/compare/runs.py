"""The two runs of a comparison, each with its own process and its own copy of the folders."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...interception import environment
from ...lightning_modules.common.libraries import is_installed

REFERENCE = "reference"
LIGHTRAINER = "lightrainer"
WORK = "work"
"""The working folder of a side, in its folder."""
MARK = "comparison.json"
"""The file that marks the folder of a comparison."""
LIMIT = 2 * 2**30
"""Bytes that one copy of the working folder may take."""
_LAST_LINES = 15
_GIB = 2**30


class CompareError(Exception):
    """The script cannot be compared; the message says why."""


@dataclass(kw_only=True)
class WorkingFolder:
    """A folder that is copied for each side."""

    path: Path
    linked: Collection[Path] = ()
    """Files and folders that the script only reads; the copy has links to them."""
    left_out: Collection[Path] = ()
    """Files and folders that are not copied."""

    def copy(self, target: Path) -> None:
        """Copy the folder, with links to what the script only reads.

        Args:
            target: the path of the copy.

        Raises:
            CompareError: the folder is too large.
        """
        self._check_size()
        shutil.copytree(self.path, target, ignore=self._names_to_ignore)
        for path in self.linked:
            if self.path in path.parents:
                (target / path.relative_to(self.path)).symlink_to(path)

    def _names_to_ignore(self, folder: str, names: list[str]) -> list[str]:
        """Return the names in a folder that are not copied."""
        return [name for name in names if not self._is_copied(Path(folder, name))]

    def _is_copied(self, path: Path) -> bool:
        """Return whether a file or folder is copied; sockets and broken links are not."""
        if path in self.linked or path in self.left_out:
            return False
        if not path.is_dir():
            return path.is_file()

        # Neither other comparisons, nor virtual environments, caches and the like.
        is_comparison = (path / MARK).exists()
        is_virtual_environment = (path / "pyvenv.cfg").exists()
        if is_comparison or is_virtual_environment:
            return False
        return path.name not in (".git", "__pycache__", "node_modules")

    def _check_size(self) -> None:
        sizes = {path.name: self._size(path) for path in self.path.iterdir()}
        if sum(sizes.values()) <= LIMIT:
            return
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        entries = ", ".join(f"{name} {sizes[name] / _GIB:.1f} GiB" for name in largest)
        raise CompareError(
            f"The folder {self.path} has more than {LIMIT / _GIB:.0f} GiB, and each side gets a "
            f"copy. The largest entries are {entries}. Pass --link for those that the script only "
            "reads, and --leave-out for those that it does not need."
        )

    def _size(self, path: Path) -> int:
        """Return the size in bytes of a copy of a file or folder."""
        if not self._is_copied(path):
            return 0
        if path.is_dir():
            return sum(self._size(inner) for inner in path.iterdir())
        return path.stat().st_size

    def remove_unchanged(self, target: Path) -> None:
        """Remove what the script did not change from a copy.

        Args:
            target: the path of the copy.
        """
        # Bottom up, so that folders are empty when their turn comes.
        for folder, folder_names, file_names in os.walk(target, topdown=False):
            for name in [*folder_names, *file_names]:
                path = Path(folder, name)
                original = self.path / path.relative_to(target)
                if path.is_symlink() or _is_unchanged(path, original):
                    path.unlink()
                elif path.is_dir() and original.is_dir() and not any(path.iterdir()):
                    path.rmdir()


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script to compare."""

    path: Path
    working_folder: Path
    """The working folder, which is part of the first of `folders`."""
    folders: Sequence[WorkingFolder]
    """The folders that are copied; the second one, if any, is that of the script."""
    arguments: Sequence[str] = ()
    launcher: Sequence[str] = ()
    """The command that starts the script; empty for Python."""
    seed: int = 0
    """Seed of Python's and NumPy's generators and of hashes, unless the script sets another."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A completed run."""

    side: str
    folder: Path
    seconds: float
    """From the start of the process to its exit."""


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
    """Make the folder of a comparison, and remove an earlier comparison in it.

    Raises:
        CompareError: the folder has other files, or cannot be written.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARK).exists():
                raise CompareError(
                    f"--folder {folder} has files that are not from a comparison. Pass an empty "
                    "folder."
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompareError(f"--folder {folder}: {error.strerror}.") from None
    (folder / MARK).write_text("{}\n")


def run_side(script: Script, side: str, folder: Path) -> Run:
    """Run the script on a side, in copies of its folders.

    Args:
        script: the script.
        side: `reference` or `lightrainer`.
        folder: the folder of this side, for the log, and for the copy of the working folder,
            `work`, which keeps only the files that the script wrote.

    Raises:
        CompareError: the script failed; the message has its last lines.
    """
    # Copy the folders.
    folder.mkdir()
    copies: dict[str, str] = {}
    for name, working_folder in zip((WORK, "script"), script.folders, strict=False):
        copies[str(working_folder.path)] = str(folder / name)
        working_folder.copy(folder / name)

    # Use the copies where the command line has paths of the originals. One of the folders may
    # contain the other, so longer paths are tried first.
    longest_first = sorted(copies, key=len, reverse=True)
    alternatives = "|".join(re.escape(path) for path in longest_first)
    original_path = re.compile(rf"({alternatives})(?=/|$)")

    def to_copy(word: str) -> str:
        return original_path.sub(lambda match: copies[match[1]], word)

    # Run the script.
    working_copy = to_copy(str(script.working_folder))
    start = list(script.launcher) or [sys.executable]
    if side == LIGHTRAINER and not script.launcher:
        start += ["-m", "lightrainer"]
    script_path = os.path.relpath(to_copy(str(script.path)), working_copy)
    arguments = [to_copy(word) for word in script.arguments]

    log = folder / "log.txt"
    start_time = time.monotonic()
    with log.open("wb") as stream:
        status = subprocess.call(
            [*start, script_path, *arguments],
            cwd=working_copy,
            env={**_environment(script, side, folder), "PWD": working_copy},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    seconds = time.monotonic() - start_time

    # Keep only what the script wrote.
    for working_folder in script.folders:
        working_folder.remove_unchanged(Path(copies[str(working_folder.path)]))
    if status != 0:
        raise CompareError(_failure_message(script, side, status, log))
    return Run(side=side, folder=folder, seconds=seconds)


def _failure_message(script: Script, side: str, status: int, log: Path) -> str:
    """Describe a failed run, with the last lines of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last_lines = "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])
    message = (
        f"The script failed with the {side} (exit status {status}). Its last lines:\n\n{last_lines}"
    )
    if "FileNotFound" in last_lines:
        message += (
            f"\n\nIt ran in a copy of {script.folders[0].path}. To copy a folder above it, pass "
            "--root."
        )
    return message


def _environment(script: Script, side: str, folder: Path) -> dict[str, str]:
    """Return the environment of a side, which starts the recorder in each Python process."""
    variables = dict(os.environ)
    environment.switch_on(variables)
    variables[environment.INSTALL] = "1" if side == LIGHTRAINER else "0"
    variables[environment.RECORDER] = str(Path(__file__).with_name("recorder.py"))
    variables.setdefault("PYTHONHASHSEED", str(script.seed))
    settings = {"side": side, "folder": str(folder), "seed": script.seed}
    variables["LIGHTRAINER_COMPARE"] = json.dumps(settings)
    return variables


def _is_unchanged(path: Path, original: Path) -> bool:
    """Return whether a file is still the copy of another one, by size and time."""
    if not path.is_file() or not original.is_file():
        return False
    copied = path.stat()
    source = original.stat()
    return copied.st_size == source.st_size and copied.st_mtime_ns == source.st_mtime_ns
