"""Suggest valid names for misspelt ones."""

import difflib
from collections.abc import Iterable


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """Return " Did you mean 'x'?" for the closest choice, or an empty string.

    Args:
        value: the value that was passed.
        choices: the valid names.
    """
    near = nearest(value, choices)
    if near is None:
        return ""
    return f" Did you mean {near!r}?"


def nearest(value: object, choices: Iterable[object]) -> str | None:
    """Return the choice that is closest to `value`, or None.

    Candidates, in this order, are choices that begin with `value`, that differ by a typo, and that
    contain `value` as a word (`padding`, `non_padding`). Case is ignored.

    Args:
        value: the value that was passed.
        choices: the valid names. Among equally close ones the first is returned.
    """
    written = str(value).lower()
    names = {str(choice).lower(): str(choice) for choice in choices}
    if not _SHORTEST <= len(written) <= _LONGEST:
        return names.get(written)

    # Compare the letters first, because difflib rates short names with two swapped letters as too
    # different.
    for name in names:
        if name.startswith(written) or sorted(name) == sorted(written):
            return names[name]
    for name in difflib.get_close_matches(written, names, 1, _LIKENESS):
        return names[name]
    for name in names:
        is_long_enough = len(written) >= _LEAST_SHARE * len(name)
        if is_long_enough and f"_{written}_" in f"_{name}_":
            return names[name]
    return None


_SHORTEST = 3
"""Minimum number of letters. Shorter strings match too many names."""
_LONGEST = 100
"""Maximum number of letters. Longer strings are not names."""
_LIKENESS = 0.72
"""Minimum similarity of a misspelt name."""
_LEAST_SHARE = 1 / 3
"""Minimum length of a matching word, as a fraction of the name's length."""
