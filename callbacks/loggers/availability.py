"""Check which trackers are installed, and refuse those that are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.versions import installed, is_older

COMET_AT_LEAST = "3.44"
"""The oldest comet_ml whose `start` heeds `COMET_START_ONLINE`."""

TRACKERS = {
    "azure_ml": ("services", "AzureMLCallback", "azureml-core"),
    "clearml": ("clearml", "ClearMLCallback", "clearml"),
    "codecarbon": ("services", "CodeCarbonCallback", "codecarbon"),
    "comet_ml": ("services", "CometCallback", "'comet_ml>=3.44'"),
    "dagshub": ("mlflow", "DagsHubCallback", "dagshub mlflow"),
    "dvclive": ("dvclive", "DVCLiveCallback", "dvclive"),
    "flyte": ("services", "FlyteCallback", "flytekit"),
    "mlflow": ("mlflow", "MLflowCallback", "mlflow"),
    "swanlab": ("swanlab", "SwanLabCallback", "swanlab"),
    "tensorboard": ("tensorboard", "TensorBoardCallback", "tensorboard"),
    "trackio": ("trackio", "TrackioCallback", "trackio"),
    "wandb": ("wandb", "WandbCallback", "wandb"),
}
"""The module, the class and the packages to install for each name in `report_to`."""


class MissingTrackerError(ImportError, RuntimeError):
    """The package of a tracker is missing: a RuntimeError in the reference, an ImportError by
    its nature.
    """


def is_switched_on(variable: str, default: str = "FALSE") -> bool:
    """Return whether an environment variable is 1, on, true, y or yes, in any case."""
    return os.environ.get(variable, default).strip().upper() in {"1", "ON", "TRUE", "Y", "YES"}


def _check_for(module: str) -> Callable[[], bool]:
    return lambda: is_installed(module)


# As the functions of these names in `transformers.integrations`; nothing is imported by a check.
is_azureml_available = _check_for("azureml.core.run")
is_clearml_available = _check_for("clearml")
is_codecarbon_available = _check_for("codecarbon")
is_dvclive_available = _check_for("dvclive")
is_flytekit_available = _check_for("flytekit")
is_swanlab_available = _check_for("swanlab")
is_trackio_available = _check_for("trackio")
is_wandb_available = _check_for("wandb")


def is_comet_available() -> bool:
    """As `transformers.integrations.is_comet_available`, but an API key is not needed for
    experiments kept offline.

    Reads the installed version without importing the package; imports it only to ask for the key in
    its files.
    """
    if not is_comet_installed():
        return False
    offline = os.environ.get("COMET_START_ONLINE", "").strip().lower() in ("0", "false")
    if offline or os.environ.get("COMET_API_KEY"):
        return True
    return import_module("comet_ml.config").get_config("comet.api_key") is not None


def is_comet_installed() -> bool:
    """Return whether comet_ml is installed in `COMET_AT_LEAST` or newer."""
    found = installed("comet_ml") if is_installed("comet_ml") else None
    return found is not None and not is_older(found, COMET_AT_LEAST)


def is_dagshub_available() -> bool:
    """As `transformers.integrations.is_dagshub_available`: its client and that of MLflow."""
    return is_installed("dagshub") and is_installed("mlflow")


def is_flyte_deck_standard_available() -> bool:
    """As `transformers.integrations.is_flyte_deck_standard_available`."""
    return is_flytekit_available() and is_installed("flytekitplugins.deck")


def is_mlflow_available() -> bool:
    """As `transformers.integrations.is_mlflow_available`: installed, and not turned off by the
    environment.
    """
    return not is_switched_on("DISABLE_MLFLOW_INTEGRATION") and is_installed("mlflow")


def is_tensorboard_available() -> bool:
    """As `transformers.integrations.is_tensorboard_available`: tensorboard, or tensorboardX in
    its place.
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


def require(there: bool, platform: str, callback: str) -> None:
    """Raise where the package of a callback is missing.

    Args:
        there: whether it is.
        platform: its name in `report_to`.
        callback: the name of the class, for the message.

    Raises:
        MissingTrackerError: says what to install.
    """
    if there:
        return
    if platform in ("mlflow", "dagshub") and is_installed("mlflow") and not is_mlflow_available():
        raise MissingTrackerError(
            f"report_to={platform!r} is turned off by DISABLE_MLFLOW_INTEGRATION: unset it."
        )
    raise MissingTrackerError(
        f"report_to={platform!r}: {callback} needs `pip install {TRACKERS[platform][2]}`."
    )
