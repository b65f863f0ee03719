"""Who runs a search: an object for each name."""

from __future__ import annotations

from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean
from .backend import Backend
from .optuna_backend import OptunaBackend
from .ray_tune import RayBackend

_REFUSED = {
    "wandb": "a sweep of W&B is led by its server, which chooses the values. To see the trials there, leave backend "
    "out and set report_to='wandb': each trial is a run of its own",
    "sigopt": "the service was shut down, and later versions of the reference dropped it too. Leave backend out",
}


def choose_backend(name: Any) -> Backend:
    """The backend of a name; optuna without one.

    Raises:
        ValueError: nobody knows it.
        NotImplementedError: it is known and refused; says why.
        RuntimeError: its library is not installed.
    """
    own: dict[str, type[Backend]] = {"optuna": OptunaBackend, "ray": RayBackend}
    word = "optuna" if name is None else str(getattr(name, "value", name))
    if word in _REFUSED:
        raise NotImplementedError(f"backend={word!r} is not supported: {_REFUSED[word]}.")
    if word not in own:
        raise ValueError(f"backend={name!r} is not known.{did_you_mean(word, own)} Choose from: {', '.join(own)}.")
    own[word].ensure_available()
    return own[word]()
