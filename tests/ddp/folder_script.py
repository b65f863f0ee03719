"""Folders that `lightning.Trainer` writes in two processes, and goes on from; for `torchrun`.

torchrun --nproc_per_node=2 folder_script.py LIBRARY SCENARIO OUTPUT_FOLDER
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import RandomSampler, default_collate

import lightrainer
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


class Model(nn.Module):
    """With dropout, so that the generators of both processes matter."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x, labels=None):
        logits = self.second(functional.dropout(torch.tanh(self.first(x)), 0.2, self.training))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def data():
    features = torch.randn(22, 8, generator=torch.Generator().manual_seed(1))
    return [{"x": x, "labels": x[:3].argmax()} for x in features]


def digest(model) -> str:
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def by_lightning(folder: Path, seed: int = 7, resume: Path | None = None) -> str:
    """Three batches an epoch for each of the two processes, six steps in all."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    optimizer, schedule = OptimizerConfig(learning_rate=0.01), ScheduleConfig(name="linear", total_steps=6)
    module = LossModule(Model(seed), optimizer=optimizer, schedule=schedule)
    saving = ModelCheckpoint(
        dirpath=folder,
        filename="checkpoint-{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=1,
        save_top_k=-1,
    )
    saving.FILE_EXTENSION = ""
    with lightning_internals.quiet():
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            plugins=[FolderCheckpointIO(module)],
            callbacks=[saving],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
        items = data()
        loader = build_loader(
            items,
            batch_size=4,
            collate_fn=default_collate,
            sampler=RandomSampler(items),
            seed=42,
            rank=RANK,
            world_size=2,
        )
        set_seed(42 + RANK)
        trainer.fit(module, loader, ckpt_path=resume)
    return digest(module.model)


def by_the_facade(folder: Path, seed: int = 7, resume: Path | None = None) -> str:
    arguments = lightrainer.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        learning_rate=0.01,
        max_grad_norm=0.0,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="steps",
        save_steps=1,
        data_seed=42,
        dataloader_pin_memory=False,
    )
    trainer = lightrainer.Trainer(Model(seed), arguments, train_dataset=data())
    set_seed(42 + RANK)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return digest(trainer.model)


def main() -> None:
    _, scenario, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    written, saved = folder / "written", folder / "saved"
    found = {"facade": by_the_facade(saved), "lightning": by_lightning(written)}
    for step in (2, 3):
        checkpoint = f"checkpoint-{step}"
        found[f"lightning to facade {step}"] = by_the_facade(folder / "a", 99, written / checkpoint)
        found[f"lightning to lightning {step}"] = by_lightning(folder / "b", 99, written / checkpoint)
        found[f"facade to lightning {step}"] = by_lightning(folder / "c", 99, saved / checkpoint)
    found["files"] = sorted(path.name for path in (written / "checkpoint-2").iterdir())
    (folder / f"{scenario}-rank{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
