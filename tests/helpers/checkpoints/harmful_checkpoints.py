"""Checkpoints with a malicious pickle in one of their files, and all code paths that load them."""

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

import lightrainer
from helpers.trainer.tiny_trainings import make_trainer, points, tiny
from lightrainer.facade.compat.checkpoints import load_sharded_checkpoint
from lightrainer.lightning_modules import FolderCheckpointIO, LossModule, build_loader
from lightrainer.lightning_modules.checkpoints import (
    last_intact_checkpoint,
    load_weights,
    problems,
    read_weights,
    sharded_files,
)
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.lightning_modules.internals import lightning_internals
from lightrainer.lightning_modules.internals.lightning_import import Trainer as LightningTrainer

LIGHTNINGS = (
    "LeafSpec:FutureWarning",
    "does not have many workers",
    "You defined a `validation_step` but have no",
)
WARNINGS = pytest.mark.filterwarnings(*(f"ignore:.*{said}" for said in LIGHTNINGS))
WEIGHTS = "model.safetensors"
SHARD, INDEX = "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"
MODEL_PARTS, OPTIMIZER_PARTS = "pytorch_model_fsdp_0", "optimizer_0"
STATES = [
    *(
        "optimizer.pt",
        "optimizer.bin",
        "scheduler.pt",
        "scaler.pt",
        "rng_state.pth",
        "data_state_0.pth",
    ),
    "outside_model.pt",
    *("callback_states.pt", "lightning_callbacks.pt", "lightning_state.pt", "training_args.bin"),
]
OF_WEIGHTS = ["pytorch_model.bin", SHARD, f"{MODEL_PARTS}/.metadata", f"{MODEL_PARTS}/values"]
OF_OPTIMIZERS = [f"{OPTIMIZER_PARTS}/.metadata", f"{OPTIMIZER_PARTS}/values"]
OTHERS = [
    "adapter_model.bin",
    "pytorch_model_fsdp.bin",
    "global_step2/mp_rank_00_model_states.pt",
    "user.pt",
]
FILES = [*STATES, *OF_WEIGHTS, *OF_OPTIMIZERS, *OTHERS]
"""Every file of a checkpoint that can hold a pickle; `values` are those of a folder of parts
that are no tensors.
"""


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)

    @property
    def has_run(self) -> bool:
        return self.place.exists()


class LossWithBuffer(torch.nn.CrossEntropyLoss):
    def forward(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        return super().forward(outputs["logits"].float(), labels)


def fp16_trainer(folder: Path, **changes: Any) -> Any:
    """Under fp16, so that there is a scaler; with callbacks and a loss that have states."""
    callbacks = [lightrainer.EMACallback(), EarlyStopping("eval_loss", patience=9, strict=False)]
    options = {
        "callbacks": callbacks,
        "compute_loss_func": LossWithBuffer(weight=torch.ones(3)),
        **changes,
    }
    return make_trainer(folder, fp16=True, **options)


def write_whole_checkpoint(folder: Path) -> Path:
    """After step 2 of 4; with parts of the model and of the optimizer as FSDP writes them, and
    states of Lightning.
    """
    trainer = fp16_trainer(folder / "out", save_strategy="steps", save_steps=2)
    trainer.train()
    checkpoint = folder / "out" / "checkpoint-2"
    convert(checkpoint, folder / "file.ckpt")
    converted = convert(folder / "file.ckpt", folder / "again")
    with_parts(trainer.model, trainer.optimizer, checkpoint)
    (converted / "lightning_state.pt").rename(checkpoint / "lightning_state.pt")
    (checkpoint / "_manifest.json").unlink()  # which would tell what is missing
    return checkpoint


def with_parts(model: Any, optimizer: Any, checkpoint: Path) -> None:
    """Add the parts that a single process writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        sharded_files.save_model_parts(model, checkpoint)
        sharded_files.save_optimizer_parts(model, optimizer, checkpoint)


def poison(checkpoint: Path, name: str, payload: Evil) -> None:
    """Put the payload into one file, beside what belongs there, and leave only what makes that
    file be looked at.
    """
    path = checkpoint / name
    if name in OF_WEIGHTS:
        (checkpoint / WEIGHTS).unlink()
    if name in OF_OPTIMIZERS:
        (checkpoint / "optimizer.pt").unlink()
    else:
        shutil.rmtree(checkpoint / OPTIMIZER_PARTS)
    if name == "adapter_model.bin":
        (checkpoint / WEIGHTS).unlink()
    if name == "optimizer.bin":
        (checkpoint / "optimizer.pt").rename(path)
    path.parent.mkdir(exist_ok=True)
    if path.name == ".metadata":
        table = pickle.loads(path.read_bytes())
        table.planner_data = payload
        path.write_bytes(pickle.dumps(table))
    elif path.name == "values":
        put_value(path.parent, "first.weight" if name in OF_WEIGHTS else "lr", payload)
    else:
        content = {"payload": payload, **_content(checkpoint, path)}
        torch.save(content, path)
    if name == SHARD:
        names = dict.fromkeys(tiny().state_dict(), SHARD)
        (checkpoint / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def put_value(folder: Path, ending: str, payload: Any) -> None:
    """In the place of the first entry whose name ends so, a value that is unpickled: with a
    genuine table.
    """
    table = pickle.loads((folder / ".metadata").read_bytes())
    name = next(name for name in table.state_dict_metadata if name.endswith(ending))
    place = table.storage_data.pop(next(key for key in table.storage_data if key.fqn == name))
    torch.save(payload, folder / "__9_9.distcp")
    place.relative_path, place.offset, place.length = (
        "__9_9.distcp",
        0,
        (folder / "__9_9.distcp").stat().st_size,
    )
    table.state_dict_metadata[name] = BytesStorageMetadata()
    table.storage_data[MetadataIndex(name)] = place
    (folder / ".metadata").write_bytes(pickle.dumps(table))


def _content(checkpoint: Path, path: Path) -> dict[str, Any]:
    if path.name in ("pytorch_model.bin", SHARD):
        return dict(tiny().state_dict())
    if path.exists() and path.name != "training_args.bin":
        return torch.load(path, weights_only=False)
    return {}


# --- doors: each takes the folder of a checkpoint, and goes in as far as it goes


def _train_cloned(checkpoint: Path) -> None:
    """As after a clone of the repository of `hub_strategy="checkpoint"`: by its name on the Hub."""
    checkpoint.rename(checkpoint.with_name("last-checkpoint"))
    trainer = fp16_trainer(checkpoint.parent, hub_model_id="user/model")
    trainer.train(resume_from_checkpoint="last-checkpoint")


def _best(checkpoint: Path) -> Any:
    trainer = fp16_trainer(
        checkpoint.parent,
        load_best_model_at_end=True,
        eval_strategy="steps",
        save_strategy="steps",
    )
    trainer.state.best_model_checkpoint = str(checkpoint)
    return trainer


def _ema(checkpoint: Path) -> None:
    trainer = _best(checkpoint)
    trainer._lightrainer.callback_states.load_best()


def lightning_trainer(**changes: Any) -> Any:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return LightningTrainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **changes})


def _lightning(checkpoint: Path) -> None:
    module = LossModule(tiny())
    with lightning_internals.quiet():
        trainer = lightning_trainer(plugins=[FolderCheckpointIO(module)])
        trainer.fit(module, build_loader(points(), batch_size=4), ckpt_path=checkpoint)


def _lightning_alone(checkpoint: Path) -> None:
    """Without a plugin: modules of ours read folders by themselves."""
    with lightning_internals.quiet():
        lightning_trainer().fit(
            LossModule(tiny()), build_loader(points(), batch_size=4), ckpt_path=checkpoint
        )


def _optimizer_parts(checkpoint: Path) -> None:
    if not (checkpoint / OPTIMIZER_PARTS).is_dir():
        return
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    sharded_files.load_optimizer_parts(model, optimizer, checkpoint, all_ranks=False)


def _sharded(checkpoint: Path) -> None:
    if (checkpoint / INDEX).exists():
        load_sharded_checkpoint(tiny(), checkpoint)


def _look(checkpoint: Path) -> None:
    problems(checkpoint)
    last_intact_checkpoint(checkpoint.parent)


def _convert(checkpoint: Path) -> Any:
    """Without the parts of the optimizer, which a file cannot hold."""
    shutil.rmtree(checkpoint / OPTIMIZER_PARTS, ignore_errors=True)
    return convert(checkpoint, checkpoint.parents[1] / "out.ckpt")


DOORS: dict[str, Callable[[Path], Any]] = {
    "train(folder)": (
        lambda checkpoint: fp16_trainer(checkpoint.parents[1] / "new").train(
            resume_from_checkpoint=str(checkpoint)
        )
    ),
    "train(True)": (
        lambda checkpoint: fp16_trainer(checkpoint.parent).train(resume_from_checkpoint=True)
    ),
    "train(last-checkpoint)": _train_cloned,
    "best model": lambda checkpoint: _best(checkpoint)._load_best_model(),
    "best average": _ema,
    "lightning.Trainer with the plugin": _lightning,
    "lightning.Trainer": _lightning_alone,
    "convert": _convert,
    "read_weights": read_weights,
    "load_weights": lambda checkpoint: load_weights(tiny(), checkpoint),
    "optimizer parts": _optimizer_parts,
    "load_sharded_checkpoint": _sharded,
    "problems": _look,
}
