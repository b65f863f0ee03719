"""The folders of trials: what they are called, and what a trial wrote into its own."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

_CHECKPOINT = re.compile(r"checkpoint-\d+(/|$)")


class TrialShortNamer:
    """As `transformers.utils.hp_naming.TrialShortNamer`: a short name for the values of a trial.

        class Namer(TrialShortNamer):
            PREFIX = "lm"
            DEFAULTS = {"learning_rate": 5e-5, "seed": 42}

        trainer.hyperparameter_search(hp_name=lambda trial: Namer.shortname(trial.params))  # "lm_lr0.001_s7"

    A name is made of the first letters of its words, as few as tell it from those before it; values that are the
    defaults are left out. `parse_repr` reads such a name.
    """

    PREFIX = "hp"
    DEFAULTS: dict[str, Any] = {}

    @classmethod
    def set_defaults(cls, prefix: str, defaults: dict[str, Any]) -> None:
        """Set what names begin with, and the values that are left out of them."""
        cls.PREFIX, cls.DEFAULTS = prefix, defaults

    @classmethod
    def short_names(cls) -> dict[str, str]:
        """The short form of each name in `DEFAULTS`."""
        words: dict[str, str] = {}
        names: dict[str, str] = {}
        for name in cls.DEFAULTS:
            parts = [_short_word(word, words) for word in name.split("_")]
            short = "".join(parts)
            names[name] = short if short not in names.values() else "_".join(parts)
        return names

    @classmethod
    def shortname(cls, params: dict[str, Any]) -> str:
        """The name for some values.

        Raises:
            KeyError: a name has no default.
        """
        short, found = cls.short_names(), [cls.PREFIX]
        for name, value in params.items():
            if name not in cls.DEFAULTS:
                raise KeyError(f"{cls.__name__}.DEFAULTS has no {name!r} (the value is {value!r}): add its default.")
            if value != cls.DEFAULTS[name]:
                number = isinstance(value, (bool, int, float))
                written = int(value) if isinstance(value, bool) else value
                found.append(f"{short[name]}{'' if number else '-'}{written}")
        return "_".join(found)

    @classmethod
    def parse_repr(cls, repr: str) -> dict[str, Any]:
        """The values behind a name, those that are left out too.

        Raises:
            ValueError: it is no such name.
        """
        long = {short: name for name, short in cls.short_names().items()}
        rest, values = repr.removeprefix(cls.PREFIX).lstrip("_"), {}
        forms = "|".join(sorted(map(re.escape, long), key=len, reverse=True)) or "(?!)"
        number = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
        while rest:
            match = re.match(rf"({forms})(?:({number})|-(.*?))(?:_(?=(?:{forms})[-\d])|$)", rest)
            if match is None:
                raise ValueError(f"{repr!r} is no name of {cls.__name__}: {rest!r} cannot be read.")
            short, digits, text = match.groups()
            values[long[short]] = float(digits) if digits is not None else text
            rest = rest[match.end() :]
        return {**values, **{name: value for name, value in cls.DEFAULTS.items() if name not in values}}


class RunFolders:
    """Which folder, below `output_dir`, belongs to which trial.

    Args:
        hp_name: names a trial; `run-<number>` without it.
    """

    def __init__(self, hp_name: Callable[[Any], str] | None = None) -> None:
        self.hp_name = hp_name
        self._owners: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def name(self, trial: Any, number: Any = None) -> str:
        """The folder of a trial; one that goes on where another was interrupted has that of the other.

        Args:
            trial: the trial.
            number: that of the trial whose folder it is; by default of this one.

        Raises:
            TypeError, ValueError: `hp_name` gives something that cannot name a folder.
        """
        number = getattr(trial, "number", None) if number is None else number
        if number in self._names:
            return self._names[number]
        name = f"run-{number}" if self.hp_name is None else checked_name(self.hp_name(trial))
        while self._owners.setdefault(name, number) != number:  # equal values, or a careless name
            name = f"{name}-{number}"
        self._names[number] = name
        return name

    def name_of_ray(self, run_id: str, values: dict[str, Any]) -> str:
        """Return the name of the folder of a trial of Ray, as in the reference."""
        return f"run-{run_id}" if self.hp_name is None else checked_name(self.hp_name(values))


def checked_name(name: Any) -> str:
    """What `hp_name` returned, if it can name a folder of its own in `output_dir`.

    Raises:
        TypeError, ValueError: it cannot.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"hp_name returned {name!r}. It has to return a name for the trial: text that is not empty.")
    parts = name.replace("\\", "/").split("/")
    if os.path.isabs(name) or ".." in parts:
        raise ValueError(f"hp_name returned {name!r}, which is outside of output_dir. Return a plain name.")
    if name == ".":
        raise ValueError("hp_name returned '.', which is output_dir itself. Return a name for the trial's own folder.")
    if len(parts) > 1:
        instead = "-".join(part for part in parts if part not in ("", "."))
        raise ValueError(
            f"hp_name returned {name!r}, but folders of trials must not lie in one another. Return a plain name, such "
            f"as {instead or 'run'!r}."
        )
    return name


def _short_word(word: str, taken: dict[str, str]) -> str:
    """As few letters of the word as no other word has; `taken` is filled."""
    if any(letter.isdigit() for letter in word):
        raise ValueError(f"{word!r} has a digit in it, so that a short name with its value could not be read.")
    if word not in taken:
        lengths = range(1, len(word) + 1)
        taken[word] = next((word[:n] for n in lengths if word[:n] not in taken.values()), word + "#")
    return taken[word]


def files_below(folder: Path) -> frozenset[str]:
    """Everything below a folder, which need not be there, as paths relative to it; links are not followed."""
    found = set()
    for root, folders, files in os.walk(folder):
        found.update(Path(root, name).relative_to(folder).as_posix() for name in (*folders, *files))
    return frozenset(found)


def without_checkpoints(paths: Collection[str]) -> frozenset[str]:
    """Those of the paths that an interrupted trial has not left in its folder for its retry."""
    return frozenset(path for path in paths if not _CHECKPOINT.match(path))


def remove_all_but(folder: Path, kept: Collection[str], *, made: bool) -> None:
    """Remove what a pruned trial wrote.

    Args:
        folder: its folder.
        kept: what was in it before, see `files_below`.
        made: whether the folder itself was not there before.
    """
    kept = set(kept)
    for root, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(root, name)
            if path.relative_to(folder).as_posix() in kept:
                continue
            with contextlib.suppress(OSError):  # a folder that still holds something, or what somebody else removed
                path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
    if made and not folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.rmdir()
