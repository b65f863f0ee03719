"""The names of the folders of trials."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"


class TrialShortNamer:
    """Make short names from the values of trials, and read them back.

    Works like `transformers.utils.hp_naming.TrialShortNamer`.

        class Namer(TrialShortNamer):
            PREFIX = "lm"
            DEFAULTS = {"learning_rate": 5e-5, "seed": 42}

        # "lm_lr0.001_s7"
        trainer.hyperparameter_search(hp_name=lambda trial: Namer.shortname(trial.params))

    The short form of a parameter's name has the first letters of each of its words, as few as
    distinguish the word from the words before it. Values that equal the defaults are left out.
    `parse_repr` reads such a name.
    """

    PREFIX = "hp"
    DEFAULTS: dict[str, Any] = {}

    @classmethod
    def set_defaults(cls, prefix: str, defaults: dict[str, Any]) -> None:
        """Set the prefix of all names, and the values that are left out of them.

        Args:
            prefix: the beginning of each name.
            defaults: the default of each parameter, by its name.
        """
        cls.PREFIX = prefix
        cls.DEFAULTS = defaults

    @classmethod
    def short_names(cls) -> dict[str, str]:
        """Return the short form of each name in `DEFAULTS`."""
        short_words: dict[str, str] = {}
        short_names: dict[str, str] = {}
        for name in cls.DEFAULTS:
            parts = [_short_word(word, short_words) for word in name.split("_")]
            short = "".join(parts)
            if short in short_names.values():
                short = "_".join(parts)
            short_names[name] = short
        return short_names

    @classmethod
    def shortname(cls, params: dict[str, Any]) -> str:
        """Return the short name for the values of a trial.

        Args:
            params: values by the names of parameters.

        Raises:
            KeyError: a parameter has no default.
        """
        short_names = cls.short_names()
        parts = [cls.PREFIX]
        for name, value in params.items():
            if value == cls.DEFAULTS[name]:
                continue
            # A number needs no separator: short names have no digits.
            separator = "" if isinstance(value, (bool, int, float)) else "-"
            if isinstance(value, bool):
                value = int(value)
            parts.append(f"{short_names[name]}{separator}{value}")
        return "_".join(parts)

    @classmethod
    def parse_repr(cls, repr: str) -> dict[str, Any]:
        """Return the values for a short name, including the defaults that it leaves out.

        Args:
            repr: a name from `shortname`.

        Raises:
            ValueError: it is not a name that `shortname` returns.
        """
        full_names = {short: name for name, short in cls.short_names().items()}

        # An entry is a short name with a number, or with "-" and a text. It ends where the next
        # entry begins. Longer short names are tried first; "(?!)" matches nothing.
        escaped = [re.escape(short) for short in full_names]
        short_name = "|".join(sorted(escaped, key=len, reverse=True)) or "(?!)"
        end_of_entry = rf"(?:_(?=(?:{short_name})[-\d])|$)"
        entry = re.compile(rf"({short_name})(?:({_NUMBER})|-(.*?)){end_of_entry}")

        values: dict[str, Any] = {}
        rest = repr.removeprefix(cls.PREFIX).lstrip("_")
        while rest:
            match = entry.match(rest)
            if match is None:
                raise ValueError(
                    f"{repr!r} is not a name of {cls.__name__}: cannot parse {rest!r}."
                )
            short, number, text = match.groups()
            values[full_names[short]] = text if number is None else float(number)
            rest = rest[match.end() :]

        for name, default in cls.DEFAULTS.items():
            values.setdefault(name, default)
        return values


def folder_name(hp_name: Callable[[Any], str] | None, trial: object, run_id: int | str) -> str:
    """Return the name of the folder of a trial, the same as in the reference.

    Args:
        hp_name: returns a name for a trial; None for `run-<id>`.
        trial: the trial; with Ray its values.
        run_id: the number of the trial whose folder it is; with Ray its id.

    Raises:
        ValueError: `hp_name` returned something that cannot name a folder.
    """
    if hp_name is None:
        return f"run-{run_id}"
    return checked_name(hp_name(trial))


def checked_name(name: object) -> str:
    """Return a name from `hp_name` unchanged, after checking that it names a folder.

    Raises:
        ValueError: it does not name a folder directly inside `output_dir`.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError(
            f"hp_name returned {name!r}, which is not a folder in output_dir. Return a name "
            "without '/' and '\\'."
        )
    return name


def _short_word(word: str, short_words: dict[str, str]) -> str:
    """Return the shortest prefix of a word that no other word has, and add it to `short_words`."""
    if any(letter.isdigit() for letter in word):
        raise ValueError(
            f"{word!r} contains a digit, so a short name followed by a number would be ambiguous. "
            "Use a parameter name without digits."
        )
    if word in short_words:
        return short_words[word]

    short = f"{word}#"
    for length in range(1, len(word) + 1):
        if word[:length] not in short_words.values():
            short = word[:length]
            break
    short_words[word] = short
    return short
