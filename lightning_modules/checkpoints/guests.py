"""Files that others put into a checkpoint: they outlive its being written again."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path, PurePosixPath

from .forms import ADAPTER_FILES
from .manifest import MANIFEST_NAME, read_manifest
from .names import (
    ADAPTER_CONFIG_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    MODEL_PARTS_NAME,
    OPTIMIZER_PARTS_NAME,
    TRAINER_STATE_NAME,
)

_log = logging.getLogger(__name__)

_OF_THE_FORMAT = re.compile(
    r".*\.(safetensors|bin|pt|pth|ckpt|distcp)(\.index\.json)?|\.metadata|tokenizer.*|vocab.*|merges\.txt"
    rf"|{re.escape(MANIFEST_NAME)}|{'|'.join(map(re.escape, (ADAPTER_CONFIG_NAME, CONFIG_NAME)))}"
    rf"|{'|'.join(map(re.escape, (GENERATION_CONFIG_NAME, TRAINER_STATE_NAME)))}"
)
_FOLDERS_OF_THE_FORMAT = re.compile(rf"{MODEL_PARTS_NAME}|{OPTIMIZER_PARTS_NAME}|global_step\d+")


def take_over_guests(older: Path, newer: Path) -> None:
    """Put the files that others have added to a checkpoint into the one that is to replace it, as further links.

    Those that it was written with are not taken over, whether the new one has such files or not: what is left of a
    larger number of shards would be read as if it belonged to it.

    Args:
        older: the checkpoint, which is not changed.
        newer: the folder in the making.
    """
    for name in _guests(older):
        source, target = older / name, newer / name
        if os.path.lexists(target):
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(source, target)
        except OSError as error:
            _log.warning("%s is not kept: it could not be taken over into the checkpoint (%s).", source, error)


def _guests(folder: Path) -> list[str]:
    """Files and links below a folder that were not written with it, as names relative to it."""
    there = []
    for root, folders, files in os.walk(folder):
        links = [name for name in folders if Path(root, name).is_symlink()]
        there += [Path(root, name).relative_to(folder).as_posix() for name in (*files, *links)]
    try:
        written = read_manifest(folder)
    except ValueError:
        written = None
    if written is not None:
        return [name for name in there if name not in written and name != MANIFEST_NAME]
    return [name for name in there if not _is_of_the_format(folder, PurePosixPath(name))]


def _is_of_the_format(folder: Path, name: PurePosixPath) -> bool:
    """Whether a file may have been written with a checkpoint that does not say which were."""
    if len(name.parts) == 1:
        return _OF_THE_FORMAT.fullmatch(name.name) is not None
    top = name.parts[0]
    return _FOLDERS_OF_THE_FORMAT.fullmatch(top) is not None or any(
        (folder / top / file).is_file() for file in ADAPTER_FILES
    )


def _link_or_copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        os.symlink(os.readlink(source), target)
        return
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
