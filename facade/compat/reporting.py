"""Callback classes by name of the tracking service, and checks for installed search libraries."""

from ...callbacks import loggers
from ...callbacks.reporting import CALLBACKS
from ...lightning_modules.common.libraries import is_installed

INTEGRATION_TO_CALLBACK = {name: getattr(loggers, callback) for name, callback in CALLBACKS.items()}
"""As `transformers.integrations.integration_utils.INTEGRATION_TO_CALLBACK`: each name in `report_to` with its class."""


def is_optuna_available() -> bool:
    """As `transformers.integrations.is_optuna_available`."""
    return is_installed("optuna")


def is_ray_available() -> bool:
    """As `transformers.integrations.is_ray_available`."""
    return is_installed("ray")


def is_ray_tune_available() -> bool:
    """As `transformers.integrations.is_ray_tune_available`."""
    return is_installed("ray.tune")
