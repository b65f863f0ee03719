"""Samplers and pruners of optuna by name, as on a command line."""

from __future__ import annotations

import io
import json
import pickle
import re
from typing import Any

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.suggestions import did_you_mean
from .storages import without_experimental_warnings

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
    "grid": "RandomSampler",  # unused, as all points are queued
}
_NEEDS = {"cmaes": "cmaes", "gp": "scipy", "qmc": "scipy"}
"""Packages that optuna imports when the first trial is drawn."""


def make_pruner(written: str) -> Any:
    """Make a pruner such as `median`, or `median:n_startup_trials=3,n_warmup_steps=100`.

    Raises:
        ValueError: the name is unknown, or it does not take these settings.
    """
    import optuna

    defaults = {"wrapped_pruner": None} if written.startswith("patient") else {}
    return _made("pruner", optuna.pruners, _PRUNERS, written, defaults)


def make_sampler(written: str, seed: int | None = None) -> Any:
    """Make a sampler such as `tpe`, or `tpe:n_startup_trials=5`.

    Args:
        written: its name, and settings.
        seed: of its random numbers.

    Raises:
        ValueError: the name is unknown, or it does not take these settings.
        ImportError: its package is not installed.
    """
    import optuna

    sampler = _made("sampler", optuna.samplers, _SAMPLERS, written, {"seed": seed})
    package = _NEEDS.get(written.partition(":")[0])
    if package and not is_installed(package):
        raise ImportError(
            f"--sampler {written} needs a package that is not installed: pip install {package}"
        )
    return sampler


def _made(
    what: str, module: Any, known: dict[str, str], written: str, settings: dict[str, Any]
) -> Any:
    name, _, more = written.partition(":")
    if name not in known:
        near = did_you_mean(name, known)
        raise ValueError(
            f"--{what} {written}: {name!r} is not known.{near} Choose from: {', '.join(known)}."
        )
    pairs = (setting.partition("=") for setting in more.split(",") if setting)
    settings = settings | {key.strip(): _plain(value) for key, _, value in pairs}
    try:
        with without_experimental_warnings():
            return (
                careful_sampler(**settings)
                if name == "cmaes"
                else getattr(module, known[name])(**settings)
            )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"--{what} {written}: {error}. Settings are written as {name}:key=value,key=value."
        ) from None


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


_STATE = re.compile(r"((?:sep)?cma(?:wm)?:(?:.*:)?optimizer):(0|[1-9][0-9]*)")
"""The attributes of a trial that hold a pickled state of the sampler, in pieces."""
_OF_NUMPY = {
    (module, name)
    for module in (
        f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric")
    )
    for name in ("_reconstruct", "scalar", "_frombuffer")
} | {("numpy", "dtype"), ("numpy", "ndarray")}


def careful_sampler(**settings: Any) -> Any:
    """As `optuna.samplers.CmaEsSampler`, but without unpickling programs from a storage.

    Args:
        settings: of the sampler.
    """
    import optuna

    class CarefulCmaEsSampler(optuna.samplers.CmaEsSampler):
        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            for known in study.get_trials(deepcopy=False):
                for state in _states(known.system_attrs):
                    if state not in checked:
                        require_cma_state(state, known.number)
                        checked.add(state)
            return super().sample_relative(study, trial, search_space)

    checked: set[str] = set()
    return CarefulCmaEsSampler(**settings)


def require_cma_state(state: str, number: int) -> None:
    """Refuse a pickled state that refers to anything but classes of `cmaes` and arrays of numpy.

    Args:
        state: the pickle, in hexadecimal digits.
        number: that of its trial, for errors.

    Raises:
        ValueError: it is damaged, or refers to something else.
    """
    try:
        _Unpickler(io.BytesIO(bytes.fromhex(state))).load()
    except _ForeignNameError as error:
        raise ValueError(
            f"the study's trial {number} holds a state of the sampler that refers to {error}: "
            "reading it could run any program. Take another study or sampler."
        ) from error
    except Exception as error:  # an unpickler may raise anything
        raise ValueError(
            f"the study's trial {number} holds a damaged state of the sampler: {error}"
        ) from error


class _ForeignNameError(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        of_cmaes = module.partition(".")[0] == "cmaes" and name in ("CMA", "SepCMA", "CMAwM")
        if not of_cmaes and (module, name) not in _OF_NUMPY:
            raise _ForeignNameError(f"{module}.{name}")
        return super().find_class(module, name)


def _states(attributes: dict[str, Any]) -> list[str]:
    """Return the states among the attributes of a trial, each joined from its pieces."""
    pieces: dict[str, dict[int, str]] = {}
    for key, value in attributes.items():
        if match := _STATE.fullmatch(key):
            pieces.setdefault(match[1], {})[int(match[2])] = str(value)
    return ["".join(of[index] for index in sorted(of)) for of in pieces.values()]
