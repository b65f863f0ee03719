"""Trainings in two processes: one is evaluated on two sets, in the other the loss of rank 1 has a spike.

torchrun --nproc_per_node=2 sets_script.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch.callbacks import SpikeDetection
from ranks import QUIET, Classifier, points
from torchmetrics.classification import MulticlassAccuracy

from lightrainer import NaNGuardCallback, Trainer, TrainingArguments


class Spiking(Classifier):
    """The loss of the fifth batch is large, in rank 1 alone."""

    calls = 0

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        self.calls += 1
        factor = 1000 if self.calls == 5 and os.environ["RANK"] == "1" else 1
        return {**outputs, "loss": factor * outputs["loss"]}


def main(folder: Path) -> None:
    options = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best", **QUIET}
    best = {"eval_aggregate": "mean", "metric_for_best_model": "mean_accuracy", "logging_steps": 1}
    torch.manual_seed(7)
    trainer = Trainer(
        Classifier(),
        TrainingArguments(str(folder / "run"), **options, **best),
        train_dataset=points(40),
        eval_dataset={"a": points(13), "b": points(6)},
        compute_metrics={
            "a": lambda prediction: {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()},
            "b": {"accuracy": MulticlassAccuracy(3, average="micro")},
        },
    )
    trainer.train()
    times = ("runtime", "second")
    logs = [{key: it for key, it in one.items() if not key.endswith(times)} for one in trainer.state.log_history]
    guard = NaNGuardCallback("skip", spikes=SpikeDetection(window=3, warmup=2, rtol=5.0))
    plain = {"max_steps": 6, "save_strategy": "no", **QUIET}
    Trainer(
        Spiking(), TrainingArguments(str(folder / "out"), **plain), train_dataset=points(80), callbacks=[guard]
    ).train()
    seen = {
        "skipped": guard.skipped,
        "logs": logs,
        "best": trainer.state.best_metric,
        "step": trainer.state.best_global_step,
    }
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
