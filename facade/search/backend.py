"""What runs a search: what all of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from ...lightning_modules.common.libraries import is_installed
from ..arguments.enums import HPSearchBackend
from .hyperparameters import BestRun
from .options import SearchOptions
from .search import Search


class Backend(ABC):
    """As `transformers.hyperparameter_search.HyperParamSearchBackendBase`: one way to run a search."""

    name: ClassVar[HPSearchBackend]
    package: ClassVar[str]
    """What to install."""
    default_hp_space: Callable[[Any], Any]

    @classmethod
    def ensure_available(cls) -> None:
        """Say what to install where the library is missing.

        Raises:
            RuntimeError: it is (also an ImportError).
        """
        if not is_installed(cls.name.value):
            raise MissingBackendError(
                f"backend={cls.name.value!r} needs a library that is not installed: pip install {cls.package}"
            )

    @abstractmethod
    def check(self, trainer: Any, options: SearchOptions) -> None:
        """Refuse options that cannot be, before anything is made."""

    @abstractmethod
    def run(self, trainer: Any, search: Search) -> BestRun | list[BestRun]:
        """Run all trials."""


class MissingBackendError(RuntimeError, ImportError):
    """The library of a backend is missing: a RuntimeError in the reference, an ImportError for everybody else."""
