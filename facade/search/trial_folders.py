"""Name the folders of trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def folder_name(hp_name: Callable[[Any], str] | None, trial: object, run_id: int | str) -> str:
    """Return the name of a trial's folder, the same as in the reference.

    Args:
        hp_name: returns a name for a trial; None for `run-<id>`.
        trial: the trial; with Ray, its values.
        run_id: the number of the trial whose folder it is; with Ray, its id.

    Raises:
        ValueError: `hp_name` returned something that is not a folder name.
    """
    if hp_name is None:
        return f"run-{run_id}"
    return checked_name(hp_name(trial))


def checked_name(name: object) -> str:
    """Return a name from `hp_name` unchanged, and raise if it is not a folder name.

    Raises:
        ValueError: the name is not that of a folder directly inside `output_dir`.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError(
            f"hp_name returned {name!r}, which is not a folder in output_dir. Return a name "
            "without '/' and '\\'."
        )
    return name
