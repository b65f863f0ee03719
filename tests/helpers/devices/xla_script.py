"""Trains on one device of torch_xla (the CPU, through PJRT) and on the CPU; prints what both saw,
as JSON.

PJRT_DEVICE=CPU python xla_script.py FOLDER
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

import lightrainer


class Model(nn.Module):
    """Tied weights, and dropout if asked for."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.inner = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids, labels=None):
        logits = self.head(self.dropout(torch.tanh(self.inner(self.embedding(ids)))))
        loss = (
            nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            if labels is not None
            else None
        )
        return {"loss": loss, "logits": logits}


def make_trainer(folder, *, dropout=0.0, **changes):
    arguments = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
    }
    arguments |= {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 3,
    }
    arguments |= {"report_to": "none", "disable_tqdm": True, **changes}
    torch.manual_seed(0)
    rows = torch.randint(16, (40, 6), generator=torch.Generator().manual_seed(1))
    data = [{"ids": row, "labels": row.roll(1)} for row in rows]
    args = lightrainer.TrainingArguments(str(folder), **arguments)
    return lightrainer.Trainer(Model(dropout), args, train_dataset=data, eval_dataset=data[:10])


def losses(made):
    history = made.state.log_history
    return [
        entry[key]
        for entry in history
        for key in ("loss", "grad_norm", "eval_loss")
        if key in entry
    ]


def main(folder):
    warnings.simplefilter("ignore")
    record = {}
    # torch counts its devices in the first backward pass, so torch_xla has to be there by then.
    cases = {
        "xla": {"debug": "tpu_metrics_debug"},
        "bf16": {"bf16": True},
        "cpu": {"use_cpu": True},
    }
    for name, changes in cases.items():
        trainer = make_trainer(folder / name, **changes)
        trainer.train()
        record[name] = losses(trainer)
        record[f"{name} predicted"] = (
            trainer.predict(trainer.eval_dataset).predictions[0, 0].tolist()
        )
        if name == "xla":
            args = trainer.args
            record["members"] = [
                str(args.device),
                args.parallel_mode.value,
                args.n_gpu,
                args.world_size,
            ]
            record["strategy"] = trainer.plan.strategy.name
            record["parameters on"] = sorted(
                {parameter.device.type for parameter in trainer.model.parameters()}
            )
            record["files"] = sorted(os.listdir(folder / name / "checkpoint-6"))
            on_cpu = make_trainer(folder / "again", use_cpu=True)
            on_cpu._load_from_checkpoint(str(folder / name / "checkpoint-6"))
            record["evaluated on the cpu"] = on_cpu.evaluate()["eval_loss"]
    straight = make_trainer(folder / "straight", dropout=0.5)
    straight.train()
    resumed = make_trainer(folder / "resumed", dropout=0.5)
    resumed.train(resume_from_checkpoint=str(folder / "straight" / "checkpoint-3"))
    record["straight"], record["resumed"] = losses(straight), losses(resumed)
    print(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
