"""A training that is evaluated on two sets, in two processes: `torchrun --nproc_per_node=2 sets_script.py FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from ranks import QUIET, Classifier, points
from torchmetrics.classification import MulticlassAccuracy

from lightrainer import Trainer, TrainingArguments


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
    seen = {"logs": logs, "best": trainer.state.best_metric, "step": trainer.state.best_global_step}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
