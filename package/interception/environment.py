"""Environment variables that switch import interception on in child processes."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

INSTALL = "LIGHTRAINER_INSTALL"
"""1 makes child Python processes intercept imports from their start; 0 does not."""
DRY_RUN = "LIGHTRAINER_DRY_RUN"
"""1 makes the Trainer print its plan and exit before the first step."""
RECORDER = "LIGHTRAINER_RECORDER"
"""The file that Python processes run at startup; set by `compare`, `evaluate` and `lr-find`."""

KERAS_BACKEND = "KERAS_BACKEND"
"""The backend of Keras, which Keras reads when it is imported."""
KERAS_BACKENDS = ("torch", "tensorflow")

FOLDER = str(Path(__file__).with_name("children"))
"""The folder whose `sitecustomize` reads these variables; it has to be on PYTHONPATH."""


def switch_on(environment: MutableMapping[str, str]) -> None:
    """Make Python processes that are started with this environment intercept imports.

    Args:
        environment: changed in place; other folders of PYTHONPATH are kept.
    """
    environment[INSTALL] = "1"
    environment["PYTHONPATH"] = os.pathsep.join([FOLDER, *_other_folders(environment)])


def choose_keras_backend(environment: MutableMapping[str, str], name: str | None = None) -> None:
    """Set the backend of Keras, which would be TensorFlow by default.

    Args:
        environment: changed in place.
        name: one of `KERAS_BACKENDS`; by default that of the environment, or else torch.
    """
    backend = name or environment.get(KERAS_BACKEND) or KERAS_BACKENDS[0]
    environment[KERAS_BACKEND] = backend


def switch_off(environment: MutableMapping[str, str]) -> None:
    """Undo `switch_on`."""
    environment.pop(INSTALL, None)
    folders = _other_folders(environment)
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    else:
        environment.pop("PYTHONPATH", None)


def _other_folders(environment: MutableMapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH except ours."""
    path = environment.get("PYTHONPATH", "")
    if not path:
        return []
    return [folder for folder in path.split(os.pathsep) if folder != FOLDER]
