"""A plain training, one process of which ends in another way each time that it is started, for
`torchrun`.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts=5 --nproc_per_node=2
    restarted_script.py OUTPUT_FOLDER

Before it comes a training that nothing happens to, which has the same numbers, in a folder of its
own. In the end every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.
"""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

from helpers.ddp.fault_actions import Classifier, Points, fail, kill, rank
from helpers.processes.rank_training import QUIET, timeless
from lightrainer import Trainer, TrainerCallback, TrainingArguments

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# For each attempt: the process, the event, the step, and what happens.
FAULTS = [
    (1, "on_step_end", 1, kill),  # no checkpoint yet
    (0, "on_step_end", 3, kill),
    (1, "on_save", 4, kill),
    (1, "on_step_begin", 7, fail),
    (0, "on_evaluate", 10, lambda: os._exit(5)),
]


class Faulty(TrainerCallback):
    """Lets the fault of this attempt happen, and notes where the training began."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_begin(self, args, state, control, **kwargs):
        with (self.folder / f"began-rank{rank()}.txt").open("a") as stream:
            stream.write(f"{state.global_step}\n")

    def happen(self, event: str, step: int) -> None:
        if len(FAULTS) > ATTEMPT:
            who, when, at, fault = FAULTS[ATTEMPT]
            if (who, when, at) == (rank(), event, step):
                fault()


for event in ("on_step_begin", "on_step_end", "on_save", "on_evaluate"):
    happen = lambda self, args, state, control, event=event, **kwargs: self.happen(
        event, state.global_step
    )
    setattr(Faulty, event, happen)


class Dropping(Classifier):
    """With dropout: random numbers count."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, labels=None):
        return super().forward(self.dropout(x), labels)


def trained(folder: Path, callbacks: list[TrainerCallback]) -> Trainer:
    options = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 3,
        "learning_rate": 1e-2,
        "logging_steps": 1,
    }
    options |= {
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    arguments = TrainingArguments(str(folder), ddp_timeout=60, **options, **QUIET)
    torch.manual_seed(7)
    data = {"train_dataset": Points(count=16), "eval_dataset": Points(count=5)}
    trainer = Trainer(Dropping(), arguments, **data, callbacks=callbacks)
    trainer.train()
    return trainer


def leave_trap(whole: Path, folder: Path) -> None:
    """Put the last checkpoint of another job into the folder; this one must not resume from it."""
    if ATTEMPT == 0 and rank() == 0:
        shutil.copytree(whole / "checkpoint-12", folder / "checkpoint-112")
        manifest = folder / "checkpoint-112" / "_manifest.json"
        content = json.loads(manifest.read_text())
        assert content["job"]["training"] == 1
        content["job"] = {"launchers": ["elsewhere:/tmp/none_abc"], "training": 2}
        manifest.write_text(json.dumps(content))


def seen(trainer: Trainer) -> dict[str, object]:
    weights = {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()}
    return {"weights": weights, "history": timeless(trainer.state.log_history)}


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    whole = trained(folder / "whole", [])
    leave_trap(folder / "whole", folder / "out")
    record = {
        "whole": seen(whole),
        "restarted": seen(trained(folder / "out", [Faulty(folder)])),
        "attempt": ATTEMPT,
    }
    (folder / f"rank{rank()}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
