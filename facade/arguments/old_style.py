"""Switch for argument names of transformers 4, which are accepted where imports of `transformers` are intercepted.

`TrainingArguments(evaluation_strategy=...)` is otherwise an error as in 5.3.0. An unchanged script for 4.x runs with a
warning.
"""

from __future__ import annotations

import sys
import warnings

_accepted = False


def accept(yes: bool = True) -> None:
    """Accept the old names from now on, or refuse them."""
    global _accepted
    _accepted = yes


def accepted() -> bool:
    """Return True if old names are accepted."""
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
