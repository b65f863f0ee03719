"""Explain why a checkpoint without optimizer states cannot be loaded.

Lightning's sharding strategies require them, but raise an unrelated error.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ..checkpoints.sharded_reading import read_table
from ..common.libraries import is_instance
from ..common.torch_files import load_torch
from ..internals.lightning_import import Trainer

_log = logging.getLogger(__name__)


def explain_missing_optimizer_states(trainer: Trainer) -> None:
    """Log why the checkpoint of a trainer could not be loaded, if it lacks optimizer states.

    Lightning then raises an IndexError, or an error about a missing key.

    Args:
        trainer: the trainer that failed to load its `ckpt_path`, if it has one.
    """
    if trainer.ckpt_path is None:
        return
    strategy = trainer.strategy
    path = Path(trainer.ckpt_path)
    is_sharding = is_instance(
        strategy, "lightning.pytorch.strategies", "FSDPStrategy", "ModelParallelStrategy"
    )
    if not is_sharding or not path.exists() or _has_optimizer_states(path):
        return
    _log.error(
        "%s holds no optimizer states, so Lightning's %s cannot load it: it was written before the "
        "first step, or the optimizer has no states (SGD without momentum). Resume from a "
        "checkpoint that was written after a step, or start the training without ckpt_path. An "
        "optimizer without states can be resumed under "
        "ModelParallelStrategy(save_distributed_checkpoint=True).",
        path,
        type(strategy).__name__,
    )


def _has_optimizer_states(path: Path) -> bool:
    """Return whether a checkpoint has optimizer states, in one file or in shards.

    Returns True if the checkpoint cannot be read, because Lightning's error then has another cause.
    """
    try:
        if path.is_dir():
            names = read_table(path).state_dict_metadata
            return any(name.startswith("optimizer_") and ".state." in name for name in names)
        states = load_torch(path, mmap=True)["optimizer_states"]
        return any(state["state"] for state in states)
    except (KeyError, TypeError, ValueError):
        return True
