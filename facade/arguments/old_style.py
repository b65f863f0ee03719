"""Whether names of transformers 4 are understood: where its names are served, and nowhere else.

`TrainingArguments(evaluation_strategy=...)` is an error here as in 5.3.0. A script that was written for 4.x, and that
nobody edits, gets what it means, with a warning.
"""

from __future__ import annotations

import sys
import warnings

_accepted = False


def accept(yes: bool = True) -> None:
    """Understand the old names from now on, or not any more."""
    global _accepted
    _accepted = yes


def accepted() -> bool:
    """Whether they are understood."""
    return _accepted


def warn(text: str) -> None:
    """Warn of an old name, in the line of the script that has it."""
    level, frame = 2, sys._getframe(1)
    own = __name__.partition(".")[0]
    # Constructors of dataclasses have no file.
    while frame.f_back is not None and (_is_of(frame, own) or frame.f_code.co_filename == "<string>"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FutureWarning, stacklevel=level)


def _is_of(frame: object, package: str) -> bool:
    return getattr(frame, "f_globals", {}).get("__name__", "").partition(".")[0] == package
