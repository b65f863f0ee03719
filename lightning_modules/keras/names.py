"""Names for the variables of a Keras model that do not depend on how many models a process made before it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COUNTED = re.compile(r"(.+?)_\d+$")


def stable_names(paths: Iterable[str]) -> list[str]:
    """Number the layers of each parent anew, in the order in which their variables come.

    Keras calls the second model's first layer `sequential_1/dense_2`, the first one's `sequential/dense`: both become
    `sequential/dense`. Two variables of one path, as two layers of one name have, are told apart by a number.

    Args:
        paths: of the variables, with "/" between their parts.

    Returns:
        a name for each, all of them different, without dots, which torch does not allow.
    """
    renamed: dict[tuple[str, ...], str] = {}
    counts: dict[tuple[str, str], int] = {}
    taken: dict[str, int] = {}
    names = []
    for path in paths:
        *parents, last = path.replace(".", "_").split("/")
        parts: list[str] = []
        for depth, part in enumerate(parents):
            given = tuple(parents[: depth + 1])
            if given not in renamed:
                base = found[1] if (found := _COUNTED.match(part)) else part
                count = counts[*_key(parts, base)] = counts.get(_key(parts, base), -1) + 1
                renamed[given] = f"{base}_{count}" if count else base
            parts.append(renamed[given])
        name = "/".join([*parts, last])
        again = taken[name] = taken.get(name, -1) + 1
        names.append(f"{name}#{again}" if again else name)
    return names


def _key(parents: list[str], base: str) -> tuple[str, str]:
    return "/".join(parents), base
