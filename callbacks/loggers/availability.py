"""The trackers of `report_to`, and whether they are installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.versions import installed, is_older

COMET_AT_LEAST = "3.44"
"""The oldest comet_ml whose `start` reads `COMET_START_ONLINE`."""


class Tracker(NamedTuple):
    """A tracker that `report_to` can name."""

    module: str
    """The module of this package with its callback."""
    class_name: str
    """The class of its callback."""
    packages: str
    """The packages of its client, as for `pip install`."""


TRACKERS = {
    "azure_ml": Tracker("azure_ml", "AzureMLCallback", "azureml-core"),
    "clearml": Tracker("clearml", "ClearMLCallback", "clearml"),
    "codecarbon": Tracker("codecarbon", "CodeCarbonCallback", "codecarbon"),
    "comet_ml": Tracker("comet", "CometCallback", "'comet_ml>=3.44'"),
    "dagshub": Tracker("mlflow", "DagsHubCallback", "dagshub mlflow"),
    "dvclive": Tracker("dvclive", "DVCLiveCallback", "dvclive"),
    "flyte": Tracker("flyte", "FlyteCallback", "flytekit"),
    "mlflow": Tracker("mlflow", "MLflowCallback", "mlflow"),
    "swanlab": Tracker("swanlab", "SwanLabCallback", "swanlab"),
    "tensorboard": Tracker("tensorboard", "TensorBoardCallback", "tensorboard"),
    "trackio": Tracker("trackio", "TrackioCallback", "trackio"),
    "wandb": Tracker("wandb", "WandbCallback", "wandb"),
}
"""The trackers by their names in `report_to`."""


class MissingTrackerError(ImportError, RuntimeError):
    """The package of a tracker is missing.

    It is also a RuntimeError, which scripts written for transformers expect.
    """


def is_switched_on(variable: str, default: str = "FALSE") -> bool:
    """Return whether an environment variable is 1, on, true, y or yes, in any case."""
    value = os.environ.get(variable, default).strip().upper()
    return value in {"1", "ON", "TRUE", "Y", "YES"}


def _check_for(module: str) -> Callable[[], bool]:
    """Return a function that checks whether a module is installed, without importing it."""
    return lambda: is_installed(module)


# These functions have the names of those in `transformers.integrations`.
is_azureml_available = _check_for("azureml.core.run")
is_clearml_available = _check_for("clearml")
is_codecarbon_available = _check_for("codecarbon")
is_dvclive_available = _check_for("dvclive")
is_flytekit_available = _check_for("flytekit")
is_swanlab_available = _check_for("swanlab")
is_trackio_available = _check_for("trackio")
is_wandb_available = _check_for("wandb")


def is_comet_available() -> bool:
    """Return whether Comet is installed, and has an API key unless it is offline.

    Works like `transformers.integrations.is_comet_available`, but needs no API key offline. The
    package is imported only to read the key in its configuration files.
    """
    if not is_comet_installed():
        return False
    is_offline = os.environ.get("COMET_START_ONLINE", "").strip().lower() in ("0", "false")
    if is_offline or os.environ.get("COMET_API_KEY"):
        return True
    comet_config = import_module("comet_ml.config")
    return comet_config.get_config("comet.api_key") is not None


def is_comet_installed() -> bool:
    """Return whether comet_ml is installed in `COMET_AT_LEAST` or newer."""
    if not is_installed("comet_ml"):
        return False
    version = installed("comet_ml")
    return version is not None and not is_older(version, COMET_AT_LEAST)


def is_dagshub_available() -> bool:
    """Return whether DagsHub's client and MLflow's are installed.

    Works like `transformers.integrations.is_dagshub_available`.
    """
    return is_installed("dagshub") and is_installed("mlflow")


def is_flyte_deck_standard_available() -> bool:
    """Return whether flytekit's plugin for decks is installed.

    Works like `transformers.integrations.is_flyte_deck_standard_available`.
    """
    return is_flytekit_available() and is_installed("flytekitplugins.deck")


def is_mlflow_available() -> bool:
    """Return whether MLflow is installed, and not disabled by the environment.

    Works like `transformers.integrations.is_mlflow_available`.
    """
    return not is_switched_on("DISABLE_MLFLOW_INTEGRATION") and is_installed("mlflow")


def is_tensorboard_available() -> bool:
    """Return whether tensorboard or tensorboardX is installed.

    Works like `transformers.integrations.is_tensorboard_available`.
    """
    return is_installed("tensorboard") or is_installed("tensorboardX")


AVAILABLE = {
    "azure_ml": is_azureml_available,
    "clearml": is_clearml_available,
    "codecarbon": is_codecarbon_available,
    "comet_ml": is_comet_installed,
    "dagshub": lambda: is_dagshub_available() and is_mlflow_available(),
    "dvclive": is_dvclive_available,
    "flyte": is_flytekit_available,
    "mlflow": is_mlflow_available,
    "swanlab": is_swanlab_available,
    "tensorboard": is_tensorboard_available,
    "trackio": is_trackio_available,
    "wandb": is_wandb_available,
}
"""The check of each name in `report_to`."""


def require(is_available: bool, platform: str, class_name: str) -> None:
    """Raise an error if the package of a tracker is missing.

    Args:
        is_available: whether the package is installed and enabled.
        platform: the name of the tracker in `report_to`.
        class_name: the name of the callback's class, for the message.

    Raises:
        MissingTrackerError: it is not available; the message has the command that installs it.
    """
    if is_available:
        return

    # MLflow may be installed, but disabled.
    is_mlflow_disabled = is_installed("mlflow") and not is_mlflow_available()
    if platform in ("mlflow", "dagshub") and is_mlflow_disabled:
        raise MissingTrackerError(
            f"report_to={platform!r} is disabled by DISABLE_MLFLOW_INTEGRATION. Unset that "
            "environment variable."
        )

    packages = TRACKERS[platform].packages
    raise MissingTrackerError(
        f"report_to={platform!r}: {class_name} needs `pip install {packages}`."
    )
