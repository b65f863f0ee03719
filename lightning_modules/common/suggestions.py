"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """Return " Did you mean 'x'?" for the choice nearest to `value`, or an empty text.

    Args:
        value: The text that was passed.
        choices: The valid names.
    """
    near = nearest(value, choices)
    if near is None:
        return ""
    return f" Did you mean {near!r}?"


def nearest(value: object, choices: Iterable[object]) -> str | None:
    """Return the choice that `value` most likely stands for, None if no choice is near.

    Near are, in this order: a choice that begins with `value`; one that differs by a typo; one that
    has `value` among its words (`padding`, `non_padding`). Case is ignored.

    Args:
        value: What was written.
        choices: What could have been written; of equally near ones the first is taken.
    """
    written = str(value).lower()
    names = {str(choice).lower(): str(choice) for choice in choices}
    if not _SHORTEST <= len(written) <= _LONGEST:
        return names.get(written)

    # The beginning of the name, its letters in another order, a typo, or one word of the name. For
    # difflib a short name is too unlike one with two of its letters swapped.
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
"""Letters; shorter texts are part of too many names."""
_LONGEST = 100
"""Letters; longer texts are not names."""
_LIKENESS = 0.72
"""Least similarity of a misspelt name."""
_LEAST_SHARE = 1 / 3
"""Least share of a name's letters that a word of it must have."""
