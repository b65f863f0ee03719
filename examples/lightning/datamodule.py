"""Data for `lightning.Trainer` that goes on where it stopped:
`python examples/lightning/datamodule.py`.

A `DataModule` batches sentences of similar length, deals them out to all processes, and puts its
position into every checkpoint. Here a training is stopped in the middle of an epoch, and goes on to
the same weights.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from module import LETTERS, TEXT, make_module
from torch.nn.utils.rnn import pad_sequence

from lightrainer import DataModule


class Sentences(DataModule):
    """Words of the text, one to six of them a sample.

    Args:
        count: how many samples.
        kwargs: arguments of `DataModule`.
    """

    def __init__(self, count: int = 200, **kwargs: Any) -> None:
        super().__init__(collate_fn=pad, group_by_length=True, columns=["input_ids"], **kwargs)
        self.count = count

    def setup(self, stage: str) -> None:
        """Make the datasets; every process does."""
        words = (TEXT * 2).split(" ")
        starts = range(self.count)
        samples = [encode(" ".join(words[n % 21 :][: 1 + n % 6])) for n in starts]
        self.train_dataset, self.val_dataset = (
            samples[20:],
            {
                "short": samples[:20:6],
                "long": samples[5:20:6],
            },
        )
        super().setup(stage)


def encode(text: str) -> dict[str, torch.Tensor]:
    """Return a sample."""
    return {"input_ids": torch.tensor([LETTERS.index(letter) for letter in text])}


def pad(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return a batch: inputs filled up with 0, labels with -100, which do not count."""
    rows = [sample["input_ids"] for sample in samples]
    return {
        "input_ids": pad_sequence(rows, batch_first=True),
        "labels": pad_sequence(rows, batch_first=True, padding_value=-100),
    }


def trained(folder: Path, start: Path | None = None) -> list[torch.Tensor]:
    """Return the weights after two epochs, from the start or from a checkpoint."""
    lightning.seed_everything(42, verbose=False)
    saving = ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=15, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = make_module()
    trainer.fit(module, Sentences(batch_size=8), ckpt_path=start)
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    return [value.clone() for value in module.state_dict().values()]


def main() -> bool:
    """Train, and train again from step 15 of 46; returns whether both came to the same weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight = trained(folder)
        resumed = trained(folder / "again", start=folder / "step=15.ckpt")
    same = all(torch.equal(left, right) for left, right in zip(straight, resumed, strict=True))
    print("the same weights" if same else "other weights")
    return same


if __name__ == "__main__":
    main()
