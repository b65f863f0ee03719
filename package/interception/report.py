"""The report of `--verbose`: which names were served, and from where."""

from __future__ import annotations

import atexit
import sys

_served: dict[str, str] = {}
_is_registered = False


def record(name: str, source: str) -> None:
    """Record that a name was imported or looked up.

    Args:
        name: in full, `transformers.trainer.Trainer`.
        source: where its object comes from, for people.
    """
    _served.setdefault(name, source)


def print_at_exit() -> None:
    """Print the report to stderr when the process exits; calling this again changes nothing."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(_print)


def _print() -> None:
    print(text(), file=sys.stderr)


def text() -> str:
    """Return the report as a table."""
    if not _served:
        return "lightrainer: no name of transformers was used."
    width = max(map(len, _served))
    lines = [f"  {name:<{width}}  {source}" for name, source in sorted(_served.items())]
    return "\n".join([f"lightrainer served {len(lines)} names:", *lines])
