"""Samplers and pruners of optuna by name, as on a command line."""

from __future__ import annotations

import io
import json
import pickle
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.suggestions import did_you_mean
from .storages import without_experimental_warnings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler, CmaEsSampler
    from optuna.trial import FrozenTrial

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
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
    "grid": "RandomSampler",  # never samples, because all points of the grid are queued
}
_REQUIRED_PACKAGES = {"cmaes": "cmaes", "gp": "scipy", "qmc": "scipy"}
"""Packages that optuna imports when the first trial is sampled, by the name of the sampler."""

_PICKLED_STATE = re.compile(r"((?:sep)?cma(?:wm)?:(?:.*:)?optimizer):(0|[1-9][0-9]*)")
"""Attributes of a trial that hold a pickled state of the CMA-ES sampler, split into pieces."""


def make_pruner(spec: str) -> BasePruner:
    """Make a pruner such as `median`, or `median:n_startup_trials=3,n_warmup_steps=100`.

    Raises:
        ValueError: the name is unknown, or it does not take these settings.
    """
    import optuna

    defaults = {}
    if spec.startswith("patient"):
        defaults["wrapped_pruner"] = None
    return _make("pruner", optuna.pruners, _PRUNERS, spec, defaults)


def make_sampler(spec: str, seed: int | None = None) -> BaseSampler:
    """Make a sampler such as `tpe`, or `tpe:n_startup_trials=5`.

    Args:
        spec: the name of the sampler, and its settings.
        seed: the seed of its random numbers.

    Raises:
        ValueError: the name is unknown, or it does not take these settings.
        ImportError: its package is not installed.
    """
    import optuna

    sampler = _make("sampler", optuna.samplers, _SAMPLERS, spec, {"seed": seed})
    # Without this check the sweep would fail in its first trial.
    package = _REQUIRED_PACKAGES.get(spec.partition(":")[0])
    if package and not is_installed(package):
        raise ImportError(
            f"--sampler {spec} needs a package that is not installed: pip install {package}"
        )
    return sampler


def _make(
    option: str, module: ModuleType, classes: dict[str, str], spec: str, defaults: dict[str, Any]
) -> Any:
    """Make a sampler or a pruner from its name and settings.

    Args:
        option: `sampler` or `pruner`, for errors.
        module: that of optuna with the classes.
        classes: the class for each name.
        spec: name and settings, as on the command line.
        defaults: settings that `spec` may override.

    Raises:
        ValueError: the name is unknown, or the class does not take these settings.
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
            if name == "cmaes":
                return make_safe_cma_sampler(**settings)
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


def make_safe_cma_sampler(**settings: Any) -> CmaEsSampler:
    """`optuna.samplers.CmaEsSampler`, but it unpickles only known classes from a storage.

    Args:
        settings: the settings of the sampler.
    """
    import optuna

    class SafeCmaEsSampler(optuna.samplers.CmaEsSampler):
        def sample_relative(
            self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
        ) -> dict[str, object]:
            # The base class unpickles the state of an earlier trial.
            for earlier_trial in study.get_trials(deepcopy=False):
                for state in _pickled_states(earlier_trial.system_attrs):
                    if state not in checked_states:
                        require_cma_state(state, earlier_trial.number)
                        checked_states.add(state)
            return super().sample_relative(study, trial, search_space)

    checked_states: set[str] = set()
    return SafeCmaEsSampler(**settings)


def require_cma_state(state: str, number: int) -> None:
    """Refuse a pickled state that refers to anything but classes of `cmaes` and arrays of numpy.

    Args:
        state: the pickle, in hexadecimal digits.
        number: that of its trial, for errors.

    Raises:
        ValueError: the state is damaged, or refers to something else.
    """
    try:
        _StateUnpickler(io.BytesIO(bytes.fromhex(state))).load()
    except _UnsafeNameError as error:
        raise ValueError(
            f"The study's trial {number} holds a state of the sampler that refers to {error}: "
            "loading it could run arbitrary code. Use another study or sampler."
        ) from error
    except Exception as error:  # an unpickler may raise anything
        raise ValueError(
            f"The study's trial {number} holds a damaged state of the sampler: {error}. Use "
            "another study or sampler."
        ) from error


class _UnsafeNameError(Exception):
    """A pickle refers to a name that is not needed for the state of the sampler."""


class _StateUnpickler(pickle.Unpickler):
    """Loads a state of the CMA-ES sampler, and nothing else."""

    def find_class(self, module: str, name: str) -> object:
        is_cma_class = module.partition(".")[0] == "cmaes" and name in ("CMA", "SepCMA", "CMAwM")
        if not is_cma_class and not _is_numpy_array_name(module, name):
            raise _UnsafeNameError(f"{module}.{name}")
        return super().find_class(module, name)


def _is_numpy_array_name(module: str, name: str) -> bool:
    """Return whether pickles of numpy arrays and scalars refer to this name."""
    if module == "numpy":
        return name in ("dtype", "ndarray")
    array_modules = (
        "numpy.core.multiarray",
        "numpy.core.numeric",
        "numpy._core.multiarray",
        "numpy._core.numeric",
    )
    return module in array_modules and name in ("_reconstruct", "scalar", "_frombuffer")


def _pickled_states(attributes: dict[str, Any]) -> list[str]:
    """Return the states among the attributes of a trial, each joined from its pieces."""
    pieces_by_name: dict[str, dict[int, str]] = {}
    for key, value in attributes.items():
        match = _PICKLED_STATE.fullmatch(key)
        if match is not None:
            pieces = pieces_by_name.setdefault(match[1], {})
            pieces[int(match[2])] = str(value)

    states = []
    for pieces in pieces_by_name.values():
        states.append("".join(pieces[index] for index in sorted(pieces)))
    return states
