"""Pruners and samplers of optuna by name, as a command line has them."""

from __future__ import annotations

import json
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean
from .cma_es import careful_sampler
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
}


def make_pruner(written: str) -> Any:
    """A pruner such as `median`, or `median:n_startup_trials=3,n_warmup_steps=100`.

    Raises:
        ValueError: there is none of that name, or it does not take these settings.
    """
    import optuna

    return _made("pruner", optuna.pruners, _PRUNERS, written, {})


def make_sampler(written: str, seed: int | None = None) -> Any:
    """A sampler such as `tpe`, or `tpe:n_startup_trials=5`.

    Args:
        written: its name, and settings.
        seed: of its random numbers.

    Raises:
        ValueError: there is none of that name, or it does not take these settings.
    """
    import optuna

    return _made("sampler", optuna.samplers, _SAMPLERS, written, {"seed": seed})


def _made(what: str, module: Any, known: dict[str, str], written: str, more: dict[str, Any]) -> Any:
    name, _, settings = written.partition(":")
    if name not in known:
        raise ValueError(f"--{what} {written}: {name!r} is not known.{did_you_mean(name, known)} {_listed(known)}")
    keywords = dict(more)
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        keywords[key.strip()] = _plain(value)
    if name == "patient":
        keywords.setdefault("wrapped_pruner", None)
    try:
        with without_experimental_warnings():
            return careful_sampler(**keywords) if name == "cmaes" else getattr(module, known[name])(**keywords)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--{what} {written}: {error}. Settings are written as {name}:key=value,key=value.") from None


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _listed(known: dict[str, str]) -> str:
    return f"Choose from: {', '.join(known)}."
