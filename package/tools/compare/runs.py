"""The two runs of a comparison, each with a process, and a copy of the working folder, of its
own.
"""

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
    """The script cannot be compared; says why."""


@dataclass(kw_only=True)
class WorkingFolder:
    """A folder to be copied."""

    path: Path
    linked: Collection[Path] = ()
    """Files and folders that the script only reads."""
    left_out: Collection[Path] = ()

    def copy(self, target: Path) -> None:
        """Copy the folder, with links to what the script only reads.

        Raises:
            CompareError: it is too large.
        """
        self._check_size()
        shutil.copytree(self.path, target, ignore=self._ignored)
        for path in self.linked:
            if self.path in path.parents:
                (target / path.relative_to(self.path)).symlink_to(path)

    def _ignored(self, folder: str, names: list[str]) -> list[str]:
        """Return the names in a folder that are not copied; neither are sockets and broken
        links.
        """
        return [name for name in names if not self._is_copied(Path(folder, name))]

    def _is_copied(self, path: Path) -> bool:
        if path in (*self.linked, *self.left_out):
            return False
        if not path.is_dir():
            return path.is_file()
        is_other = any((path / name).exists() for name in (MARK, "pyvenv.cfg"))
        return not is_other and path.name not in (".git", "__pycache__", "node_modules")

    def _check_size(self) -> None:
        sizes = {path.name: self._size(path) for path in self.path.iterdir()}
        if sum(sizes.values()) <= LIMIT:
            return
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        described = ", ".join(f"{name} {sizes[name] / _GIB:.1f} GiB" for name in largest)
        raise CompareError(
            f"The folder {self.path} holds more than {LIMIT / _GIB:.0f} GiB, and each side gets a "
            f"copy. The largest entries are {described}. Name what is only read with --link, the "
            "rest with --leave-out."
        )

    def _size(self, path: Path) -> int:
        """Return the bytes that a copy of a file or folder takes."""
        if not self._is_copied(path):
            return 0
        if path.is_dir():
            return sum(self._size(inner) for inner in path.iterdir())
        return path.stat().st_size

    def remove_unchanged(self, target: Path) -> None:
        """Remove the files from a copy that the script did not change."""
        for folder, folders, names in os.walk(target, topdown=False):
            for path in (Path(folder, name) for name in [*folders, *names]):
                original = self.path / path.relative_to(target)
                if path.is_symlink() or (
                    path.is_file() and original.is_file() and _stamp(path) == _stamp(original)
                ):
                    path.unlink()
                elif path.is_dir() and original.is_dir() and not any(path.iterdir()):
                    path.rmdir()


@dataclass(frozen=True, kw_only=True)
class Script:
    """The compared script."""

    path: Path
    here: Path
    """The working folder, which is in the first of those that are copied."""
    folders: Sequence[WorkingFolder]
    """The folders that are copied: a second one is that of the script, where it is elsewhere."""
    words: Sequence[str] = ()
    """Its arguments."""
    launcher: Sequence[str] = ()
    """The words that start it, in the place of Python."""
    seed: int = 0
    """Of Python's and NumPy's generators and of the hashes of texts, unless the script sets
    another.
    """


@dataclass(frozen=True, kw_only=True)
class Run:
    """A completed run."""

    side: str
    folder: Path
    seconds: float
    """From the start of the process to its end."""


def check_reference() -> None:
    """Check that the reference's Trainer can be imported.

    Raises:
        CompareError: transformers or accelerate is not installed.
    """
    for package in ("transformers", "accelerate"):
        if not is_installed(package):
            needed = "pip install transformers==5.3.0 accelerate"
            raise CompareError(f"{package} is not installed, which the reference needs: {needed}")


def empty_folder(folder: Path) -> Path:
    """Make the folder of a comparison; an earlier comparison in it is removed.

    Raises:
        CompareError: it has other files.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARK).exists():
                raise CompareError(
                    f"--folder {folder} holds files that are no comparison; take an empty folder."
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompareError(f"--folder {folder}: {error.strerror}.") from None
    (folder / MARK).write_text("{}\n")
    return folder


def run_side(script: Script, side: str, folder: Path) -> Run:
    """Run the script to its end.

    Args:
        script: the script.
        side: `reference` or `lightrainer`.
        folder: of this side; gets the log, and the working folder `work`, with the files that the
            script wrote.

    Raises:
        CompareError: the script failed; has its last lines.
    """
    # Copy the folders, and name the copies where the command line names the originals.
    folder.mkdir()
    copies: dict[str, str] = {}
    for name, working_folder in zip((WORK, "script"), script.folders, strict=False):
        copies[str(working_folder.path)] = str(folder / name)
        working_folder.copy(folder / name)
    longest_first = sorted(copies, key=len, reverse=True)
    originals = re.compile(rf"({'|'.join(map(re.escape, longest_first))})(?=/|$)")

    def in_copy(word: str) -> str:
        return originals.sub(lambda match: copies[match[1]], word)

    # Run the script.
    work = in_copy(str(script.here))
    python = [sys.executable, "-m", "lightrainer"] if side == LIGHTRAINER else [sys.executable]
    path = os.path.relpath(in_copy(str(script.path)), work)
    command = [*(script.launcher or python), path, *map(in_copy, script.words)]
    variables = _variables(script, side, folder) | {"PWD": work}
    log = folder / "log.txt"
    started = time.monotonic()
    with log.open("wb") as stream:
        code = subprocess.call(
            command,
            cwd=work,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    seconds = time.monotonic() - started

    # Leave only what the script wrote.
    for working_folder in script.folders:
        working_folder.remove_unchanged(Path(copies[str(working_folder.path)]))
    if code:
        raise CompareError(_failure(script, side, code, log))
    return Run(side=side, folder=folder, seconds=seconds)


def _failure(script: Script, side: str, code: int, log: Path) -> str:
    """Describe a failed run, with the last lines of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    last = "\n".join(f"    {line}" for line in lines)
    message = f"The script failed with the {side} (exit status {code}). Its last lines:\n\n{last}"
    if "FileNotFound" in last:
        message += (
            f"\n\nIt ran in a copy of {script.folders[0].path}; --root names a folder above it."
        )
    return message


def _variables(script: Script, side: str, folder: Path) -> dict[str, str]:
    """Return the environment of a side: with the recorder, and on our side with the interception
    of imports.
    """
    variables = dict(os.environ)
    environment.switch_on(variables)
    variables[environment.INSTALL] = "1" if side == LIGHTRAINER else "0"
    variables[environment.RECORDER] = str(Path(__file__).with_name("recorder.py"))
    variables.setdefault("PYTHONHASHSEED", str(script.seed))
    settings = {"side": side, "folder": str(folder), "seed": script.seed}
    return {**variables, "LIGHTRAINER_COMPARE": json.dumps(settings)}


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
