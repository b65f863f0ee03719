"""Environment variables that switch import interception on in child processes."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

INSTALL = "LIGHTRAINER_INSTALL"
"""Set to 1, child Python processes intercept imports from their start; 0 keeps a child from it."""
VERBOSE = "LIGHTRAINER_VERBOSE"
"""The id of the process that reports at its end which names were served."""
DRY_RUN = "LIGHTRAINER_DRY_RUN"
"""Set to 1: the Trainer prints its plan and ends the process before the first step; read by the
Trainer.
"""
RECORDER = "LIGHTRAINER_RECORDER"
"""A file that Python processes run at their start; set by `lightrainer compare`."""

KERAS_BACKEND = "KERAS_BACKEND"
"""The backend of Keras; read by Keras when it is imported."""
KERAS_BACKENDS = ("torch", "tensorflow")

FOLDER = str(Path(__file__).with_name("children"))
"""The folder whose `sitecustomize` reads these variables; it has to be on PYTHONPATH."""


def switch_on(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that Python processes started with it intercept imports; other
    entries stay.

    Args:
        environment: Changed in place.
    """
    environment[INSTALL] = "1"
    environment["PYTHONPATH"] = os.pathsep.join([FOLDER, *_others(environment)])


def choose_keras_backend(environment: MutableMapping[str, str], name: str | None = None) -> None:
    """Set the backend of Keras; its own default is TensorFlow.

    Args:
        environment: Changed in place.
        name: One of `KERAS_BACKENDS`; by default what the environment says, or else torch.
    """
    environment[KERAS_BACKEND] = name or environment.get(KERAS_BACKEND) or KERAS_BACKENDS[0]


def switch_off(environment: MutableMapping[str, str]) -> None:
    """Undo `switch_on`."""
    environment.pop(INSTALL, None)
    others = _others(environment)
    if others:
        environment["PYTHONPATH"] = os.pathsep.join(others)
    else:
        environment.pop("PYTHONPATH", None)


def _others(environment: MutableMapping[str, str]) -> list[str]:
    path = environment.get("PYTHONPATH", "")
    return [part for part in path.split(os.pathsep) if part != FOLDER] if path else []
