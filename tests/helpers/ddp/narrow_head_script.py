"""Train a model whose last layer has fewer rows than there are processes, and resume: the last
process has no part of it.

narrow_head_script.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn

from helpers.processes.rank_training import QUIET
from lightrainer import Trainer, TrainingArguments


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x, labels):
        return {"loss": (self.head(torch.tanh(self.first(x))).squeeze(-1) - labels).square().mean()}


def trained(folder: Path, version: int, *, resume: str | None = None) -> dict[str, torch.Tensor]:
    """Return the full weights after four steps."""
    torch.manual_seed(0)
    samples = [{"x": x, "labels": x.sum()} for x in torch.randn(32, 8)]
    arguments = TrainingArguments(
        str(folder),
        max_steps=4,
        save_steps=2,
        learning_rate=0.1,
        fsdp="full_shard",
        fsdp_config={"version": version, "state_dict_type": "SHARDED_STATE_DICT"},
        **QUIET,
    )
    trainer = Trainer(Regression(), arguments, train_dataset=samples)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.accelerator.get_state_dict(trainer.model)


def main(folder: Path) -> None:
    for version in (1, 2):
        place = folder / str(version)
        whole = trained(place, version)
        resumed = trained(place, version, resume=str(place / "checkpoint-2"))
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole), version


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
