"""Report of `--verbose`: the names that were served, and their sources."""

from __future__ import annotations

import atexit
import sys

_served: dict[str, str] = {}
_asked_for = False


def note(name: str, source: str) -> None:
    """Remember that a name was asked for.

    Args:
        name: In full, `transformers.trainer.Trainer`.
        source: Where it came from, in words.
    """
    _served.setdefault(name, source)


def at_the_end() -> None:
    """Print the report to stderr when the process ends; once, however often this is called."""
    global _asked_for
    if not _asked_for:
        _asked_for = True
        atexit.register(lambda: print(text(), file=sys.stderr))


def text() -> str:
    """Return the report as a table."""
    if not _served:
        return "lightrainer: no name of transformers was asked for."
    width = max(map(len, _served))
    lines = [f"  {name:<{width}}  {source}" for name, source in sorted(_served.items())]
    return "\n".join([f"lightrainer served {len(lines)} names:", *lines])
