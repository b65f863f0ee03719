"""Create Optuna's samplers and pruners from names and settings on a command line."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.suggestions import did_you_mean
from .storages import without_experimental_warnings

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

_PRUNERS = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
    "patient": "PatientPruner",
}
_SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
    "grid": "RandomSampler",  # never samples, because all points of the grid are queued
}
_REQUIRED_PACKAGES = {"gp": "scipy", "qmc": "scipy"}
"""Packages that Optuna imports when the first trial is sampled, by the name of the sampler."""


def make_pruner(spec: str) -> BasePruner:
    """Create a pruner from text, such as `median:n_startup_trials=3,n_warmup_steps=100`.

    Raises:
        ValueError: the name is unknown, or the pruner does not accept the settings.
    """
    import optuna

    defaults = {}
    if spec.startswith("patient"):
        defaults["wrapped_pruner"] = None
    return _make("pruner", optuna.pruners, _PRUNERS, spec, defaults)


def make_sampler(spec: str, seed: int | None = None) -> BaseSampler:
    """Create a sampler from text, such as `tpe` or `tpe:n_startup_trials=5`.

    Args:
        spec: the name of the sampler, and its settings.
        seed: the seed of its random numbers.

    Raises:
        ValueError: the name is unknown, or the sampler does not accept the settings.
        ImportError: a package that the sampler needs is not installed.
    """
    import optuna

    sampler = _make("sampler", optuna.samplers, _SAMPLERS, spec, {"seed": seed})
    # Check now, because Optuna imports the package in the first trial, which would then fail.
    package = _REQUIRED_PACKAGES.get(spec.partition(":")[0])
    if package and not is_installed(package):
        raise ImportError(
            f"--sampler {spec} needs a package that is not installed: pip install {package}"
        )
    return sampler


def _make(
    option: str, module: ModuleType, classes: dict[str, str], spec: str, defaults: dict[str, Any]
) -> Any:
    """Create a sampler or a pruner from its name and settings.

    Args:
        option: `sampler` or `pruner`, for errors.
        module: the Optuna module that has the classes.
        classes: the name of the class for each name on the command line.
        spec: the name and settings, as on the command line.
        defaults: settings that `spec` may override.

    Raises:
        ValueError: the name is unknown, or the class does not accept the settings.
    """
    name, _, setting_list = spec.partition(":")
    if name not in classes:
        suggestion = did_you_mean(name, classes)
        raise ValueError(
            f"--{option} {spec}: {name!r} is not known.{suggestion} Choose from: "
            f"{', '.join(classes)}."
        )

    # Settings are written as key=value, separated by commas.
    settings = dict(defaults)
    for setting in setting_list.split(","):
        if setting:
            key, _, value = setting.partition("=")
            settings[key.strip()] = _parse_value(value)

    try:
        with without_experimental_warnings():
            return getattr(module, classes[name])(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"--{option} {spec}: {error}. Write settings as {name}:key=value,key=value."
        ) from None


def _parse_value(text: str) -> object:
    """Return a value written as JSON, or as True, False or None; otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
