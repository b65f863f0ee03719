"""An ordinary training script, for `torchrun`: the library is its argument, everything else is the
same for both.

    torchrun --nproc_per_node=2 train_script.py LIBRARY SCENARIO[,SCENARIO...] OUTPUT_FOLDER

Every rank writes its record to `OUTPUT_FOLDER/SCENARIO-rank<rank>.json`.
"""

import atexit
import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from helpers.processes.rank_training import QUIET, leave_group, require_end_of_group

VOCABULARY = 23
HALF = ("half", "half_compiled")  # in float16; the model is a compiled one, or is not


class Tokens(nn.Module):
    """Predicts labels of tokens, with dropout; divides by the labels of all micro-batches and
    ranks when told.
    """

    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids, labels=None, index=None, num_items_in_batch=None, **kwargs):
        logits = self.head(self.dropout(self.embedding(input_ids)))
        if labels is None:
            return {"logits": logits}
        total = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        count = num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum()
        shown = logits.sum(dim=(1, 2)) if index is None else index
        return {"loss": total / count, "shown": shown}


class Points(nn.Module):
    """A plain classifier with dropout and a LayerNorm; in evaluation it also returns which
    sample it saw.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(0.2)
        self.second = nn.Linear(16, 3)

    def forward(self, x, labels=None, index=None):
        logits = self.second(self.dropout(self.norm(torch.tanh(self.first(x)))))
        return {"loss": functional.cross_entropy(logits, labels), "index": index, "logits": logits}


def points(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 8, generator=generator)
    return [
        {"x": x, "labels": x[:3].argmax(), "index": torch.tensor(i)} for i, x in enumerate(features)
    ]


def tokens(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Six tokens each, of which a variable number has a label."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for i in range(count):
        ids = torch.randint(VOCABULARY, (6,), generator=generator)
        labels = ids.clone()
        labels[torch.rand(6, generator=generator) < 0.5] = -100
        labels[0] = ids[0]
        samples.append({"input_ids": ids, "labels": labels, "index": torch.tensor(i)})
    return samples


def trainer_of(api: Any, scenario: str, folder: Path) -> Any:
    """A trainer whose numbers do not divide.

    13 samples are evaluated on two ranks in batches of 2. 22 are trained: in batches of 3 a rank
    has 4 batches, in windows of 3 and 1; in batches of 2 it has 6, in windows of 4 and 2.
    """
    kind = "tokens" if scenario == "tokens" else "points"
    make = {"tokens": tokens, "points": points}[kind]
    batch, accumulation = (3, 3) if kind == "points" else (2, 4)
    options = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": 1e-2,
    }
    options |= {
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 3,
        "logging_steps": 1,
        "eval_strategy": "epoch",
    }
    options |= {"save_strategy": "epoch", "save_total_limit": 1, "ddp_timeout": 60, **QUIET}
    if kind == "tokens":
        # No log at the evaluation of the first epoch, nor at the last step.
        options |= {"logging_steps": 4, "include_num_input_tokens_seen": "all"}
    if scenario in HALF:
        options |= {"fp16": True, "optim": "adamw_torch"}
    arguments = api.TrainingArguments(str(folder / scenario), **options)
    torch.manual_seed(7)
    model: Any = {"tokens": Tokens, "points": Points}[kind]()
    trainer = api.Trainer(
        model=torch.compile(model, backend="eager") if scenario == "half_compiled" else model,
        args=arguments,
        train_dataset=make(22, 1),
        eval_dataset=make(13, 11),
    )
    if api.__name__ == "transformers":
        # 5.3.0 divides by the number of micro-batches twice; later versions do not.
        trainer.accelerator.gradient_accumulation_steps = 1
        if scenario in HALF:  # on a CPU it would train in float32
            trainer.accelerator.native_amp, trainer.accelerator.scaler = (
                True,
                torch.amp.GradScaler("cpu"),
            )
    if scenario in HALF:  # so large that the first steps are left out
        trainer.accelerator.scaler.load_state_dict(
            {**trainer.accelerator.scaler.state_dict(), "scale": 2.0**20}
        )
    return trainer


def main(library: str, scenarios: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    if library == "transformers":
        # Imported later, by DDP, it would hold the process group as a default argument, so that it
        # never ends.
        importlib.import_module("torch.distributed.nn.functional")
    api = importlib.import_module(library)
    for scenario in scenarios.split(","):
        run(api, scenario, folder)
    # To close it while the wrapped model is alive may end in a deadlock. Ours must do without such
    # care, and without the import above.
    leave_group(library)


def run(api: Any, scenario: str, folder: Path) -> None:
    """Train, and write the record of this rank."""
    trainer = trainer_of(api, scenario, folder)
    output = trainer.train()
    rank = int(os.environ["RANK"])
    record = {
        "global_step": output.global_step,
        "history": trainer.state.log_history,
        "weights": {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()},
        "sums": {
            name: float(tensor.double().sum())
            for name, tensor in trainer.model.state_dict().items()
        },
        "scaler": (
            scaler.state_dict()
            if (scaler := getattr(trainer.accelerator, "scaler", None))
            else None
        ),
    }
    (folder / f"{scenario}-rank{rank}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    atexit.register(require_end_of_group)  # first to be registered, so last to run
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
