"""A search with Ray on this machine, for `test_ray.py`: `ray_script.py FOLDER`."""

import json
import sys
from pathlib import Path

import ray
import torch
from ray import tune
from torch import nn
from torch.nn import functional

from lightrainer import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def points(count, seed):
    features = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return [{"x": x, "labels": x[:3].argmax()} for x in features]


def space(trial):
    return {"learning_rate": tune.loguniform(1e-3, 1e-1), "seed": tune.uniform(1, 40)}


def main(folder: Path) -> None:
    options = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    options |= {
        "save_strategy": "steps",
        "save_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(str(folder / "out"), **options)
    trainer = Trainer(
        model_init=Model, args=arguments, train_dataset=points(16, 1), eval_dataset=points(8, 2)
    )
    rate = arguments.learning_rate
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    keywords = {"backend": "ray", "storage_path": str(folder / "ray"), "verbose": 0}
    best = trainer.hyperparameter_search(space, n_trials=2, **keywords)
    held = trainer.evaluate()["eval_loss"]
    record = {
        "best": [best.run_id, best.objective, best.hyperparameters],
        "trials": [
            [trial.trial_id, trial.last_result["objective"]] for trial in best.run_summary.trials
        ],
        "held": held,
        "unchanged": arguments.learning_rate == rate,
        "folders": sorted(path.name for path in (folder / "out").iterdir()),
    }
    (folder / "seen.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
