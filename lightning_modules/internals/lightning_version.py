"""Which versions of Lightning this package runs with, asked without importing Lightning."""

from __future__ import annotations

import functools
import re
from importlib import metadata
from typing import Final, NoReturn

LOWEST: Final = (2, 6, 6)
BELOW: Final = (2, 7, 0)
"""From the one to the other private names of Lightning are those in docs/develop/lightning.md."""


@functools.cache
def require_lightning() -> None:
    """Refuse other versions at once, instead of by an AttributeError in the middle of a training.

    Raises:
        ImportError: another version is installed, or none.
    """
    try:
        version = metadata.version("lightning")
    except metadata.PackageNotFoundError:
        refuse("no lightning")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not LOWEST <= numbers < BELOW:
        refuse(f"lightning {version}")


def refuse(found: str) -> NoReturn:
    """Say what to install instead of what was found."""
    lowest, below = (".".join(map(str, one)) for one in (LOWEST, BELOW))
    raise ImportError(
        f"lightrainer runs with lightning>={lowest},<{below}, and {found} is installed. It uses private names of "
        f'Lightning, which other versions change: pip install "lightning>={lowest},<{below}"'
    )
