"""Lightning's names, imported without what nobody asked for.

Lightning imports torchmetrics, and torchmetrics imports a third of `transformers` (where that is installed) for the
sake of three metrics: a second and more at the start of every run. During the first import of torchmetrics those
classes are stood in for; they turn into the real ones when they are used. Every module of this package imports
Lightning from here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch  # noqa: F401 - first: it looks for the library by itself

from .lightning_version import require_lightning

require_lightning()


class _Deferred(type):
    """A class that is looked up in its library when something is asked of it."""

    def __getattr__(cls, name: str) -> Any:
        return getattr(getattr(importlib.import_module(cls.__module__), cls.__name__), name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(cls.__module__), cls.__name__)(*args, **kwargs)


def _deferred(library: str, name: str) -> _Deferred:
    if name.startswith("__"):  # what Python itself asks of a module
        raise AttributeError(name)
    return _Deferred(name, (), {"__module__": library})


@contextlib.contextmanager
def _deferring(library: str) -> Iterator[None]:
    """Stand in for `library` for a while, unless it is loaded already, or not there."""
    spec = None if library in sys.modules else importlib.util.find_spec(library)
    if spec is None:
        yield
        return
    stand_in = types.ModuleType(library)
    stand_in.__spec__ = spec
    stand_in.__getattr__ = lambda name: _deferred(library, name)
    sys.modules[library] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(library) is stand_in:
            del sys.modules[library]


with _deferring("transformers"):
    import torchmetrics  # first, so that Lightning finds it loaded

from lightning.fabric.plugins import environments
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, ModelCheckpoint
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.plugins import (
    CheckpointIO,
    DeepSpeedPrecision,
    FSDPPrecision,
    MixedPrecision,
    Precision,
    TorchCheckpointIO,
)
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torchmetrics import classification
from torchmetrics.aggregation import BaseAggregator


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return the callbacks of a Trainer; a connector sets the attribute, which Lightning's class does not declare."""
    connected: Any = trainer
    return connected.callbacks


__all__ = [
    "BaseAggregator",
    "BatchSizeFinder",
    "Callback",
    "CheckpointIO",
    "ClusterEnvironment",
    "CombinedLoader",
    "DDPStrategy",
    "DeepSpeedPrecision",
    "DeepSpeedStrategy",
    "FSDPPrecision",
    "FSDPStrategy",
    "LightningDataModule",
    "LightningModule",
    "Logger",
    "MixedPrecision",
    "ModelCheckpoint",
    "PassThroughProfiler",
    "Precision",
    "RunningStage",
    "SLURMEnvironment",
    "SingleDeviceStrategy",
    "Strategy",
    "TorchCheckpointIO",
    "Trainer",
    "TrainerFn",
    "_EvaluationLoop",
    "_given_hyperparameters",
    "callbacks_of",
    "classification",
    "environments",
    "isolate_rng",
    "torchmetrics",
]
