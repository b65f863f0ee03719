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
    typed = str(value).lower()
    names = {str(choice).lower(): str(choice) for choice in choices}
    if not _MIN_LENGTH <= len(typed) <= _MAX_LENGTH:
        return names.get(typed)

    # Compare the letters first, because difflib rates short names with two swapped letters as too
    # different.
    for name in names:
        if name.startswith(typed) or sorted(name) == sorted(typed):
            return names[name]
    for name in difflib.get_close_matches(typed, names, 1, _MIN_SIMILARITY):
        return names[name]
    for name in names:
        is_long_enough = len(typed) >= _MIN_WORD_SHARE * len(name)
        if is_long_enough and f"_{typed}_" in f"_{name}_":
            return names[name]
    return None


_MIN_LENGTH = 3
"""Minimum number of letters. Shorter strings match too many names."""
_MAX_LENGTH = 100
"""Maximum number of letters. Longer strings are not names."""
_MIN_SIMILARITY = 0.72
"""Minimum similarity of a misspelt name."""
_MIN_WORD_SHARE = 1 / 3
"""Minimum length of a matching word, as a fraction of the name's length."""
