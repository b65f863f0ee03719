"""A training with a time limit, which is up in one of two processes only, for `torchrun`.

    torchrun --nproc_per_node=2 time_limit_script.py OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from ranks import QUIET, Classifier, points

from lightrainer import (
    EMACallback,
    GradientNormCallback,
    MemoryCallback,
    RunReportCallback,
    ThroughputCallback,
    TimeLimitCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

RANK = int(os.environ["RANK"])


class Steps(TrainerCallback):
    """Notes how many there were, and takes some time for each."""

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.03)


def trained(folder, callbacks, resume=None, **changes):
    options = {"per_device_train_batch_size": 4, "num_train_epochs": 4, "learning_rate": 1e-2, "logging_steps": 2}
    options |= {"save_strategy": "no", "ddp_timeout": 60, **QUIET}
    arguments = TrainingArguments(str(folder), **{**options, **changes})
    torch.manual_seed(7)
    trainer = Trainer(Classifier(), arguments, train_dataset=points(80), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    limit = TimeLimitCallback(0.4 if RANK == 1 else "2h")
    stopped = trained(folder / "stopped", [Steps(), limit])
    average, whole_average = EMACallback(0.9), EMACallback(0.9)
    report = RunReportCallback(picture=False)
    measuring = [ThroughputCallback(peak_flops=1e12), MemoryCallback(), GradientNormCallback(), report]
    changes = {"save_strategy": "steps", "save_steps": 15}
    whole = trained(folder / "whole", [whole_average, *measuring], **changes)
    resumed = trained(folder / "whole", [average], resume=str(folder / "whole" / "checkpoint-15"), **changes)
    seen = {
        "step": stopped.state.global_step,
        "stopped": limit.stopped,
        "max_steps": stopped.state.max_steps,
        "average": [one.tolist() for one in average.averages.values()],
        "whole_average": [one.tolist() for one in whole_average.averages.values()],
        "weights": [one.tolist() for one in resumed.model.parameters()],
        "logs": [entry for entry in whole.state.log_history if "loss" in entry],
    }
    (folder / f"rank{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
