"""Runs the script twice, each time in a process and a folder of its own."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...interception import environment
from ...lightning_modules.common.libraries import is_installed
from .working_folder import CompareError, WorkingFolder

REFERENCE, LIGHTRAINER = "reference", "lightrainer"
WORK = "work"
"""The working folder of a side, in its folder."""
MARK = "comparison.json"
"""The file by which a folder is known for one of an earlier comparison."""
_OUTPUT_OPTIONS = ("--output_dir", "--output-dir")
_LAST_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is run."""

    path: str
    folder: WorkingFolder
    """Where it is run; each side gets a copy."""
    words: Sequence[str] = ()
    """Its arguments."""
    launcher: Sequence[str] = ()
    """What starts it in the place of Python."""
    seed: int = 0
    """Of Python's and NumPy's generators, and of the hashes of texts, as long as the script sets no other."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One side, as it went."""

    side: str
    folder: Path
    seconds: float
    """From the start of the process to its end."""


def check_reference() -> str:
    """Find the version of transformers.

    Raises:
        CompareError: It is not installed, or the Trainer's other need is not.
    """
    for package in ("transformers", "accelerate"):
        if not is_installed(package):
            raise CompareError(
                f"{package} is not installed, so there is no reference to compare with. Its Trainer needs both: "
                "pip install transformers==5.3.0 accelerate"
            )
    try:
        return version("transformers")
    except PackageNotFoundError:
        return "unknown"


def empty_folder(folder: Path) -> Path:
    """Make the folder of a comparison; what an earlier comparison left in it is removed.

    Raises:
        CompareError: There is something else in it.
    """
    if folder.exists() and not folder.is_dir():
        raise CompareError(f"--folder {folder} is a file.")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise CompareError(f"--folder {folder} holds files that are no comparison; take an empty folder.")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompareError(f"--folder {folder}: {error.strerror}.") from None
    (folder / MARK).write_text("{}\n")
    return folder


def run_side(script: Script, side: str, folder: Path) -> Run:
    """Run the script to its end.

    Args:
        script: what is run.
        side: `reference` or `lightrainer`.
        folder: of this side: its working folder `work`, of which only what the script wrote remains, and the log.

    Raises:
        CompareError: The script failed; with its last lines.
    """
    folder.mkdir()
    log = folder / "log.txt"
    work = folder / WORK
    words = _own_output(script.words, work)
    start = [sys.executable, "-m", "lightrainer"] if side == LIGHTRAINER else [sys.executable]
    command = [*(script.launcher or start), script.path, *words]
    variables = _variables(script, side, folder)
    script.folder.copy(work)
    started = time.monotonic()
    with log.open("wb") as stream:
        code = subprocess.call(command, cwd=work, env=variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    seconds = time.monotonic() - started
    script.folder.remove_unchanged(work)
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        last = "\n".join(f"    {line}" for line in lines)
        raise CompareError(f"The script failed with the {side} (exit status {code}). Its last lines:\n\n{last}")
    return Run(side=side, folder=folder, seconds=seconds)


def _variables(script: Script, side: str, folder: Path) -> dict[str, str]:
    """The environment of a side: both have the recorder, one has our names."""
    variables = dict(os.environ)
    environment.switch_on(variables)
    variables[environment.INSTALL] = "1" if side == LIGHTRAINER else "0"
    variables[environment.RECORDER] = str(Path(__file__).with_name("recorder.py"))
    variables.setdefault("PYTHONHASHSEED", str(script.seed))
    told = {"side": side, "folder": str(folder), "seed": script.seed}
    return {**variables, "LIGHTRAINER_COMPARE": json.dumps(told)}


def _own_output(words: Sequence[str], work: Path) -> list[str]:
    """Return the script's arguments, with an output folder of this side for one outside of the working folder."""
    own, is_value = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if is_value:
            own.append(_inside(work, word))
        elif name in _OUTPUT_OPTIONS and equals:
            own.append(f"{name}={_inside(work, value)}")
        else:
            own.append(word)
        is_value = word in _OUTPUT_OPTIONS
    return own


def _inside(work: Path, folder: str) -> str:
    return str(work / Path(folder).name) if os.path.isabs(folder) else folder
