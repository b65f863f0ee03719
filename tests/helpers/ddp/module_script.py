"""Modules, `DataModule` and folders under plain `lightning.Trainer` in two processes; for
`torchrun`.

torchrun --nproc_per_node=2 module_script.py LIBRARY SCENARIO OUTPUT_FOLDER
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.utils.data import RandomSampler, default_collate

import lightrainer
from helpers.ddp.module_runs import evaluated, interrupted, make_trainer, pairs, unfrozen, words
from helpers.processes.rank_training import QUIET, Classifier, points
from lightrainer.lightning_modules import (
    FolderCheckpointIO,
    LossModule,
    OptimizerConfig,
    ScheduleConfig,
    build_loader,
    set_seed,
)
from lightrainer.lightning_modules.internals import lightning_internals

RANK = int(os.environ["RANK"])


def dropping(seed: int) -> Classifier:
    """A model with dropout, so that the generators of both processes matter."""
    torch.manual_seed(seed)
    return Classifier(dropout=0.2)


def digest(model) -> str:
    return hashlib.sha256(
        b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    ).hexdigest()


def by_lightning(folder: Path, seed: int = 7, resume: Path | None = None) -> str:
    """Three batches an epoch for each of the two processes, six steps in all."""
    optimizer, schedule = (
        OptimizerConfig(learning_rate=0.01),
        ScheduleConfig(name="linear", total_steps=6),
    )
    module = LossModule(dropping(seed), optimizer=optimizer, schedule=schedule)
    names = {"filename": "checkpoint-{step}", "auto_insert_metric_name": False}
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_top_k=-1, **names)
    saving.FILE_EXTENSION = ""
    ddp = {
        "devices": 2,
        "strategy": "ddp",
        "use_distributed_sampler": False,
        "enable_checkpointing": True,
    }
    trainer = make_trainer(plugins=[FolderCheckpointIO(module)], callbacks=[saving], **ddp)
    items = points(22)
    settings = {"collate_fn": default_collate, "sampler": RandomSampler(items), "seed": 42}
    loader = build_loader(items, batch_size=4, rank=RANK, world_size=2, **settings)
    set_seed(42 + RANK)
    with lightning_internals.quiet():
        trainer.fit(module, loader, ckpt_path=resume)
    return digest(module.model)


def by_the_facade(folder: Path, seed: int = 7, resume: Path | None = None) -> str:
    options = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "max_grad_norm": 0.0,
    }
    options |= {"save_strategy": "steps", "save_steps": 1, "data_seed": 42, **QUIET}
    arguments = lightrainer.TrainingArguments(str(folder), **options)
    trainer = lightrainer.Trainer(dropping(seed), arguments, train_dataset=points(22))
    set_seed(42 + RANK)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return digest(trainer.model)


def folders(folder: Path) -> dict[str, Any]:
    """Continue with each from the folders of both."""
    written, saved = folder / "written", folder / "saved"
    digests: dict[str, Any] = {"facade": by_the_facade(saved), "lightning": by_lightning(written)}
    for step in (2, 3):
        checkpoint = f"checkpoint-{step}"
        digests[f"lightning to facade {step}"] = by_the_facade(
            folder / "a", 99, written / checkpoint
        )
        digests[f"lightning to lightning {step}"] = by_lightning(
            folder / "b", 99, written / checkpoint
        )
        digests[f"facade to lightning {step}"] = by_lightning(folder / "c", 99, saved / checkpoint)
    digests["files"] = sorted(path.name for path in (written / "checkpoint-2").iterdir())
    return digests


def main() -> None:
    _, scenario, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ddp = {"strategy": "ddp", "devices": 2}
    sharded = {
        "strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        "devices": 2,
    }
    results = {
        "folders": folders(folder),
        "words": words(4, folder / "ddp", **ddp),
        "accumulated": words(2, folder / "accumulated", accumulate_grad_batches=2, **ddp),
        "sharded": words(4, folder / "sharded", later=True, **sharded),
        "evaluated": evaluated(4, **ddp),
        "pairs": pairs(4, **ddp),
        "task accumulated": pairs(2, task=True, accumulate_grad_batches=2, **ddp),
        "unfrozen": unfrozen(4, **ddp),
        "unfrozen accumulated": unfrozen(2, accumulate_grad_batches=2, **ddp),
        "interrupted": interrupted(4, folder, **ddp),
        "interrupted by hand": interrupted(4, folder / "by hand", by_hand=True, **ddp),
    }
    (folder / f"{scenario}-rank{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
