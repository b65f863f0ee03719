# ruff: noqa: F401 - the other modules import these names from here
"""Import Lightning without importing slow libraries that are not used.

Lightning imports torchmetrics, which imports matplotlib, torchvision and a third of the modules of
`transformers`, if they are installed, for plots and a few metrics. It also imports torch's compiler
for one class. Together they take longer than all other imports. Stand-ins replace them during the
import, and resolve to the real modules when used. All modules of this package import Lightning from
here.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch  # first, because it tries to import some of these libraries

from ..common.libraries import is_installed, loaded
from .compiler import DYNAMO, disable_dynamo
from .deferred_imports import replaced_by_stand_in, without_incomplete_imports
from .lightning_version import require_lightning

require_lightning()


# CPU seconds that each stand-in saves at startup, if its library is installed: matplotlib 0.5,
# transformers 3.0, torchvision 1.4, torch's compiler 1.2.
with without_incomplete_imports(), contextlib.ExitStack() as stack:
    stack.enter_context(replaced_by_stand_in("torchmetrics.utilities.plot"))
    stack.enter_context(replaced_by_stand_in("transformers"))
    if not loaded("torchvision"):
        stack.enter_context(replaced_by_stand_in("torchvision", "models"))
    import torchmetrics  # first, so that Lightning finds it loaded

with without_incomplete_imports(), contextlib.ExitStack() as stack:
    if not loaded(DYNAMO):
        stack.enter_context(replaced_by_stand_in(DYNAMO, disable=disable_dynamo))
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
