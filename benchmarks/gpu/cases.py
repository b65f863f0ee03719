"""One case of a stage, in a process of its own, forked from one in which the libraries are
imported.
"""

import contextlib
import importlib
import importlib.util
import io
import multiprocessing
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ..common import versions

Outcome = dict[str, Any]
"""Result of a case: `figures`, and `passed` (None if nothing was promised) or `skipped` with the
reason.
"""

VERDICTS = {None: "shown", True: "passed", False: "failed"}


@dataclass(frozen=True)
class Setting:
    """Where the stages run; on a CPU with small models and few steps.

    Args:
        device: "cuda" or "cpu".
    """

    device: str

    @property
    def small(self) -> bool:
        """Return whether this is a rehearsal."""
        return self.device == "cpu"

    def libraries(self) -> list[str]:
        """This package, and the reference if it is installed."""
        return [name for name in ("transformers", "lightrainer") if importlib.util.find_spec(name)]


def run_case(stage: str, case: str, setting: Setting, seconds: float) -> dict[str, Any]:
    """Run a case and return its row; one that has not ended after `seconds` is killed."""
    begin = time.monotonic()
    outcome = _in_process(_outcome, (stage, case, setting), seconds)
    if outcome is None:
        outcome = {
            "passed": False,
            "note": f"killed after {seconds:.0f} seconds, or by the system",
        }
    verdict = "skipped" if "skipped" in outcome else VERDICTS[outcome["passed"]]
    return {
        "stage": stage,
        "case": case,
        "outcome": verdict,
        "figures": outcome.get("figures", {}),
        "note": outcome.get("skipped") or outcome.get("note", ""),
        "seconds": round(time.monotonic() - begin, 1),
    }


def probe(setting: Setting) -> dict[str, Any]:
    """Return the machine and the versions that results belong to."""
    return {"device": setting.device, **_in_process(_machine, (), 300)}


def commit() -> str:
    """Return the commit that runs: `COMMIT` in the environment, or else what git says of this
    folder.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        asked_git = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        asked_git = "unknown"
    return os.environ.get("COMMIT", asked_git)


def _in_process(function: Callable[..., Any], arguments: tuple, seconds: float) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.gpu.imports"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(seconds) else None
    except EOFError:  # it died
        return None
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, function: Callable[..., Any], arguments: tuple) -> None:
    sender.send(function(*arguments))


def _outcome(stage: str, case: str, setting: Setting) -> Outcome:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cases = importlib.import_module(f"benchmarks.gpu.{stage}").cases(setting)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return cases[case]()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        return {"passed": False, "note": f"{type(error).__name__} at {place}: {str(error)[:300]}"}


def _machine() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"gpu": gpu, "cuda": torch.version.cuda, "system": platform.machine(), **versions()}
    del machine["threads"]  # differ from stage to stage, and matter little to a GPU
    return machine
