# ruff: noqa: F401 - the other modules import these names from here
"""Import Lightning without importing slow libraries that are not used.

Lightning imports torchmetrics, which imports matplotlib, a third of `transformers` and torchvision
(if installed) for plots and a few metrics. It also imports torch's compiler for one class. Together
they take longer than all other imports. Stand-ins replace them during the import, and resolve to
the real modules when used. All modules of this package import Lightning from here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import torch  # first: it looks for the libraries by itself

from ..common.libraries import is_installed, loaded
from .compiler import DYNAMO, disable_dynamo
from .lightning_version import require_lightning

require_lightning()


class _Deferred(type):
    """Class or function that is imported from its library on first use."""

    def _real(cls) -> Any:
        return getattr(importlib.import_module(cls.__module__), cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._real(), name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real()(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        # A class whose module is not imported has no instances.
        return cls.__module__ in sys.modules and isinstance(instance, cls._real())


@contextlib.contextmanager
def deferring(module: str, *submodules: str, **members: object) -> Iterator[None]:
    """Replace a module by a stand-in within the `with` block, if its library is installed.

    Names imported from it in the block are resolved when used. Its submodules are hidden, because
    submodules of `transformers` import others when an attribute is read, and torchvision reads
    attributes of all loaded modules.

    Args:
        module: the full name of the module.
        submodules: names of its submodules that are replaced too.
        members: attributes of the stand-in that are available immediately.
    """
    if not loaded(module) and not is_installed(module.partition(".")[0]):
        yield
        return
    stand_ins = {module: _stand_in(module)}
    vars(stand_ins[module]).update(members)
    for submodule in submodules:
        name = f"{module}.{submodule}"
        stand_ins[name] = _stand_in(name)

    # Hide modules that are already loaded, so that imports in the block find the stand-ins.
    hidden: dict[str, types.ModuleType] = {}
    for name in list(sys.modules):
        if name == module or name.startswith(f"{module}."):
            hidden[name] = sys.modules.pop(name)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
        sys.modules.update(hidden)


def _stand_in(module: str) -> types.ModuleType:
    """Create a module whose names are resolved when used."""
    stand_in = types.ModuleType(module)
    stand_in.__spec__ = ModuleSpec(module, None)
    stand_in.__getattr__ = functools.partial(_deferred, module)
    return stand_in


def _deferred(module: str, name: str) -> _Deferred:
    # The import system reads dunder names.
    if name.startswith("__"):
        raise AttributeError(name)
    return _Deferred(name, (), {"__module__": module})


@contextlib.contextmanager
def importable_again() -> Iterator[None]:
    """Allow modules to be imported again after an exception, such as one of a signal handler,
    during their import.

    Python removes a package whose import fails but keeps its completed submodules, and does not set
    them as attributes when the package is imported again.
    """
    loaded_before = set(sys.modules)
    try:
        yield
    except BaseException:
        # Sort, so that a package comes before its submodules.
        for name in sorted(sys.modules.keys() - loaded_before):
            package = name.rpartition(".")[0]
            if package and package not in sys.modules:
                del sys.modules[name]
        raise


# CPU seconds that each stand-in saves at startup, if its library is installed: matplotlib 0.5,
# transformers 3.0, torchvision 1.4, torch's compiler 1.2.
with importable_again(), contextlib.ExitStack() as stack:
    stack.enter_context(deferring("torchmetrics.utilities.plot"))
    stack.enter_context(deferring("transformers"))
    if not loaded("torchvision"):
        stack.enter_context(deferring("torchvision", "models"))
    import torchmetrics  # first, so that Lightning finds it loaded

with importable_again(), contextlib.ExitStack() as stack:
    if not loaded(DYNAMO):
        stack.enter_context(deferring(DYNAMO, disable=disable_dynamo))
    import lightning.pytorch  # all of what follows comes with it

from lightning.fabric.accelerators.xla import XLAAccelerator
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lsf import LSFEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities import registry
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.optimization.manual import ManualResult
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
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torchmetrics import classification

if not is_installed("torch_xla"):
    # Lightning mistakes a local folder of that name for the library, and caches the result.
    modules: dict[str, Any] = sys.modules
    folder = modules.get("torch_xla")
    modules["torch_xla"] = None
    try:
        XLAAccelerator.auto_device_count()
    finally:
        del modules["torch_xla"]
        if folder is not None:
            modules["torch_xla"] = folder


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return the callbacks of a Trainer. Lightning does not declare the attribute, which a
    connector sets.
    """
    connected: Any = trainer
    return connected.callbacks
