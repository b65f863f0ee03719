"""The names of the folders of trials."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


class TrialShortNamer:
    """As `transformers.utils.hp_naming.TrialShortNamer`: a short name for the values of a trial.

        class Namer(TrialShortNamer):
            PREFIX = "lm"
            DEFAULTS = {"learning_rate": 5e-5, "seed": 42}

        trainer.hyperparameter_search(hp_name=lambda trial: Namer.shortname(trial.params))  #
        "lm_lr0.001_s7"

    A name is made of the first letters of its words, as few as tell it from those before it; values
    that are the defaults are left out. `parse_repr` reads such a name.
    """

    PREFIX = "hp"
    DEFAULTS: dict[str, Any] = {}

    @classmethod
    def set_defaults(cls, prefix: str, defaults: dict[str, Any]) -> None:
        """Set what names begin with, and the values that are left out of them."""
        cls.PREFIX = prefix
        cls.DEFAULTS = defaults

    @classmethod
    def short_names(cls) -> dict[str, str]:
        """Return the short form of each name in `DEFAULTS`."""
        words: dict[str, str] = {}
        names: dict[str, str] = {}
        for name in cls.DEFAULTS:
            parts = [_short_word(word, words) for word in name.split("_")]
            short = "".join(parts)
            names[name] = short if short not in names.values() else "_".join(parts)
        return names

    @classmethod
    def shortname(cls, params: dict[str, Any]) -> str:
        """Return the name for some values.

        Raises:
            KeyError: a name has no default.
        """
        short = cls.short_names()
        found = [cls.PREFIX]
        for name, value in params.items():
            if value != cls.DEFAULTS[name]:
                number = isinstance(value, (bool, int, float))
                written = int(value) if isinstance(value, bool) else value
                found.append(f"{short[name]}{'' if number else '-'}{written}")
        return "_".join(found)

    @classmethod
    def parse_repr(cls, repr: str) -> dict[str, Any]:
        """Return the values behind a name, those that are left out too.

        Raises:
            ValueError: it is not a name that `shortname` returns.
        """
        long = {short: name for name, short in cls.short_names().items()}
        rest = repr.removeprefix(cls.PREFIX).lstrip("_")
        values = {}
        forms = "|".join(sorted(map(re.escape, long), key=len, reverse=True)) or "(?!)"
        number = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
        while rest:
            match = re.match(rf"({forms})(?:({number})|-(.*?))(?:_(?=(?:{forms})[-\d])|$)", rest)
            if match is None:
                raise ValueError(f"{repr!r} is no name of {cls.__name__}: {rest!r} cannot be read.")
            short, digits, text = match.groups()
            values[long[short]] = float(digits) if digits is not None else text
            rest = rest[match.end() :]
        return {
            **values,
            **{name: value for name, value in cls.DEFAULTS.items() if name not in values},
        }


def folder_name(hp_name: Callable[[Any], str] | None, trial: Any, run_id: int | str) -> str:
    """Return the name of the folder of a trial, as in the reference.

    Args:
        hp_name: names a trial; None for `run-<id>`.
        trial: the trial; with Ray its values.
        run_id: the number of the trial whose folder it is; with Ray its id.

    Raises:
        ValueError: `hp_name` returns something that cannot name a folder.
    """
    return f"run-{run_id}" if hp_name is None else checked_name(hp_name(trial))


def checked_name(name: Any) -> str:
    """Return what `hp_name` returned, if it can name a folder of its own in `output_dir`.

    Raises:
        ValueError: it cannot.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError(
            f"hp_name returned {name!r}, which is not a folder in output_dir. Return a name "
            "without '/'."
        )
    return name


def _short_word(word: str, taken: dict[str, str]) -> str:
    """Return the shortest prefix of a word that no other word has, and add it to `taken`."""
    if any(letter.isdigit() for letter in word):
        raise ValueError(
            f"{word!r} has a digit in it, so that a short name with its value could not be read."
        )
    if word not in taken:
        lengths = range(1, len(word) + 1)
        taken[word] = next(
            (word[:n] for n in lengths if word[:n] not in taken.values()), word + "#"
        )
    return taken[word]
