"""A Trainer script as people start it: python launch_script.py OUTPUT_FOLDER [ARGUMENTS AS
JSON].
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from helpers.ddp import with_deepspeed  # noqa: F401 - where it is asked for
from lightrainer import Trainer, TrainingArguments


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    _no_split_modules = ["Block"]
    tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}

    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, 3)

    def forward(self, x, labels=None):
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main(folder: Path, given: dict) -> None:
    torch.manual_seed(0)
    model = Model()
    data = [{"x": x, "labels": int(x[:3].argmax())} for x in torch.randn(64, 8)]
    options = {
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": [],
    }
    options |= {"use_cpu": True}
    args = TrainingArguments(str(folder), **options, **given)
    trainer = Trainer(model, args, train_dataset=data)
    trainer.train()
    trainer.save_model(str(folder / "model"))
    if trainer.is_world_process_zero():
        logs = [
            {key: entry.get(key) for key in ("loss", "grad_norm")}
            for entry in trainer.state.log_history[:-1]
        ]
        taken = trainer.args.set_by_launcher
        (folder / "seen.json").write_text(
            json.dumps([logs, trainer.plan.strategy.name, args.world_size, taken])
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
