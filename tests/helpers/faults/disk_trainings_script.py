"""Trainings whose disk is full, or read-only, from some moment on; reports how they end.

disk_trainings_script.py FOLDER

Prints one JSON object, with an entry for each case.
"""

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from helpers.faults.kill_trainings_script import found, warm_up
from helpers.faults.killed_trainings import BEST, EVALUATED, EVERY_STEP, Case, end, refuse, train
from helpers.processes.forking import Ended, forked
from helpers.trainer.tiny_trainings import At
from lightrainer.lightning_modules import checkpoints
from lightrainer.lightning_modules.checkpoints import disk

KEEP_ALL = {**EVERY_STEP, "save_total_limit": None}
IN_TWO = {**KEEP_ALL, "per_device_train_batch_size": 1}
CASES = {
    "full": Case(arguments=KEEP_ALL),
    "full, in the background": Case(arguments=KEEP_ALL, in_background=True),
    "full, and the best is kept": Case(
        arguments={**EVERY_STEP, **EVALUATED, **BEST}, in_background=True
    ),
    "full in two processes": Case(arguments=IN_TWO, processes=2),
    "full in two processes, in the background": Case(
        arguments=IN_TWO, processes=2, in_background=True
    ),
}
SIZES = (60, 140, 220)  # kilobytes of a file system; a checkpoint takes about fifty


class Free(NamedTuple):
    free: int


def promised() -> None:
    """Report the free space from before another process took it, so that the disk refuses in
    mid-file.
    """
    disk.shutil = SimpleNamespace(**{**vars(shutil), "disk_usage": lambda folder: Free(1 << 40)})


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[bool]:
    """A file system of this size; False where only an administrator can make one."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        mounted = (
            subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
        )
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def keep_mounts_to_itself() -> None:
    """Let the file systems that this process mounts end with it, also where it is killed
    (`unshare`; Linux only).
    """
    new_mounts, private = 0x00020000, ctypes.c_ulong(0x44000)  # CLONE_NEWNS; MS_REC | MS_PRIVATE
    system = ctypes.CDLL(None)
    if os.geteuid() == 0 and system.unshare(new_mounts) == 0:
        system.mount(b"none", b"/", None, private, None)


def without_privileges() -> None:
    """Let folders without the permission to write be such for an administrator too (`capset`;
    Linux only).
    """
    if os.geteuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    granted = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for 64 of them
    if ctypes.CDLL(None, use_errno=True).capset(header, granted) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def ended_as(case: Case, whole: Path, folder: Path, ended: Ended) -> dict[str, Any]:
    """How a training with a full disk went, compared with the uninterrupted one."""
    report = {"codes": ended.codes, "output": ended.said}
    if any(ended.codes):
        return report
    left, right = end(case, whole), end(case, folder)
    report |= {
        key: all(a[key] == b[key] for a, b in zip(left, right, strict=True))
        for key in ("weights", "logs")
    }
    report |= {"warnings": ended.said.count("No checkpoint was written"), "best": right[0]["best"]}
    return {**report, "left": names(folder / "out"), "damaged": damaged(folder)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def damaged(folder: Path) -> list[str]:
    return [problem for path in found(folder) for problem in checkpoints.problems(path)]


def whole_of(case: Case, folder: Path) -> Path:
    folder.mkdir(parents=True)
    ended = forked(partial(train, case, folder), case.processes, log=folder / "log.txt")
    if any(ended.codes):
        sys.exit(f"the training with enough space failed: {ended}")
    return folder


def refused(case: Case, whole: Path, folder: Path, seed: int) -> dict[str, Any]:
    """One write in ten of the saving process fails, drawn by chance; a checkpoint has about
    eight.
    """
    folder.mkdir()

    def action() -> None:
        draw = random.Random(seed)
        refuse(folder / "out", lambda: draw.random() < 0.1)
        train(case, folder)

    return ended_as(case, whole, folder, forked(action, case.processes, log=folder / "log.txt"))


def small(case: Case, whole: Path, folder: Path, kilobytes: int) -> dict[str, Any] | None:
    """On a file system that is too small; then there is more space, and the training resumes
    from what was saved.
    """

    def action() -> None:
        promised()
        train(case, folder)

    disk = folder / "out"  # what the test itself writes down lies beside it
    with small_disk(disk, kilobytes) as mounted:
        if not mounted:
            return None
        log = folder.with_suffix(".txt")
        report = ended_as(case, whole, folder, forked(action, log=log))
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        again = ended_as(
            case,
            whole,
            folder,
            forked(partial(train, case, folder), log=log.with_suffix(".again.txt")),
        )
        return {
            **report,
            "afterwards": again["codes"] == [0] and again["weights"] and again["logs"],
        }


def never_writable(case: Case, folder: Path) -> dict[str, Any]:
    """The folder was read-only all the time."""
    (folder / "out").mkdir(parents=True)
    (folder / "out").chmod(0o555)

    def action() -> None:
        without_privileges()
        train(
            case,
            folder,
            **{"callbacks": [At("on_step_end", lambda *_: (folder / "steps.txt").touch())]},
        )

    ended = forked(action, case.processes, log=folder / "log.txt")
    return {"codes": ended.codes, "output": ended.said, "trained": (folder / "steps.txt").exists()}


def no_more_writable(case: Case, whole: Path, folder: Path) -> dict[str, Any]:
    """The folder becomes read-only in mid-training; later it is writable again, and the training
    resumes.
    """
    folder.mkdir()
    out = folder / "out"
    close = At("on_step_end", lambda *_: out.chmod(0o555), step=5)

    def action() -> None:
        without_privileges()
        train(case, folder, **{"callbacks": [close]})

    ended = forked(action, case.processes, log=folder / "log.txt")
    left, bad = names(out), damaged(folder)
    out.chmod(0o755)
    again = ended_as(
        case,
        whole,
        folder,
        forked(partial(train, case, folder), case.processes, log=folder / "2.txt"),
    )
    return {
        "codes": ended.codes,
        "output": ended.said,
        "left": left,
        "damaged": bad,
        "again": again,
    }


def main() -> None:
    torch.set_num_threads(1)
    keep_mounts_to_itself()
    folder, report = Path(sys.argv[1]), {}
    warm_up(folder)
    for name, case in CASES.items():
        place = folder / name
        whole = whole_of(case, place / "whole")
        of = report[name] = {"refused": [], "small": []}
        of["refused"] = [refused(case, whole, place / f"{i}", i) for i in (3, 4, 6)]
        if case.processes == 1:
            of["small"] = [small(case, whole, place / f"{size}k", size) for size in SIZES]
    place = folder / "read-only"
    report["never writable"] = never_writable(CASES["full"], place / "never")
    for name in ("full", "full, in the background", "full in two processes"):
        whole = folder / name / "whole"
        report[f"no more writable: {name}"] = no_more_writable(CASES[name], whole, place / name)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
