"""Trainings with callbacks in two processes, of which one is another matter at times, for
`torchrun`.

    torchrun --nproc_per_node=2 callback_script.py OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torchmetrics.classification import MulticlassAccuracy

from helpers.processes.rank_training import QUIET, Classifier, points, timeless
from lightrainer import (
    EMACallback,
    GradientNormCallback,
    MemoryCallback,
    NaNGuardCallback,
    RunReportCallback,
    ThroughputCallback,
    TimeLimitCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

RANK = int(os.environ["RANK"])


class Estimating(Trainer):
    def floating_point_ops(self, inputs):
        return 100 * len(inputs["labels"])


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.03)


class NaNOnOneRank(Classifier):
    """The loss of the sixth batch is NaN in rank 1 alone, while gradients are sound."""

    calls = 0

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        self.calls += 1
        if RANK == 1 and self.calls == 6:
            outputs["loss"] = outputs["loss"] + float("nan")
        return outputs


def trained(
    folder: Path, callbacks: Any = (), resume: Any = None, model: Any = Classifier, **changes: Any
) -> Trainer:
    """Train for 40 steps; `changes` are parameters of the Trainer or of the arguments."""
    parameters = {
        name: changes.pop(name) for name in ("eval_dataset", "compute_metrics") if name in changes
    }
    options = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 4,
        "learning_rate": 1e-2,
        "logging_steps": 2,
    }
    options |= {"save_strategy": "no", "ddp_timeout": 60, **QUIET}
    arguments = TrainingArguments(str(folder), **{**options, **changes})
    torch.manual_seed(7)
    trainer = Estimating(
        model(), arguments, train_dataset=points(80), callbacks=list(callbacks), **parameters
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def of_two_sets(folder: Path) -> dict[str, Any]:
    """The best model by the mean of a metric of both."""
    options = {
        "max_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "best",
        "logging_steps": 1,
    }
    trainer = trained(
        folder,
        eval_aggregate="mean",
        metric_for_best_model="mean_accuracy",
        eval_dataset={"a": points(13), "b": points(6)},
        compute_metrics={
            "a": lambda prediction: {
                "accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()
            },
            "b": {"accuracy": MulticlassAccuracy(3, average="micro")},
        },
        **options,
    )
    state = trainer.state
    return {
        "logs": timeless(state.log_history),
        "best": state.best_metric,
        "step": state.best_global_step,
    }


class Reads(TrainerCallback):
    """Reads each checkpoint as soon as it hears of it."""

    def __init__(self):
        self.steps: list[int] = []

    def on_save(self, args, state, control, **kwargs):
        if load_file(Path(args.output_dir, f"checkpoint-{state.global_step}", "model.safetensors")):
            self.steps.append(state.global_step)


def read_by_one_process(folder: Path, reader: int) -> list[int]:
    """Return the steps of the checkpoints that this process has read, while the other has no
    such callback.
    """
    callback = Reads()
    callbacks = [callback] if reader == RANK else []
    trained(folder, callbacks, max_steps=3, save_strategy="steps", save_steps=1)
    return callback.steps


class Unfreezes(TrainerCallback):
    """Trains the first layer, which is frozen when the training begins, after the second step."""

    def on_init_end(self, args, state, control, model: Any = None, **kwargs):
        model.first.requires_grad_(False)

    def on_step_end(self, args, state, control, model: Any = None, **kwargs):
        if state.global_step == 2:
            model.first.requires_grad_(True)


def unfrozen_while_training(folder: Path) -> dict[str, list[float]]:
    """Return the first layer before and after a training in which it is unfrozen."""
    torch.manual_seed(3)
    model = Classifier()
    before = model.first.weight.flatten().tolist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder),
            max_steps=5,
            gradient_accumulation_steps=2,
            **{**QUIET, "save_strategy": "no"},
        ),
        train_dataset=points(64),
        optimizers=(optimizer, None),
        callbacks=[Unfreezes()],
    )
    trainer.train()
    return {"before": before, "after": model.first.weight.flatten().tolist()}


class CallsModelWithoutWrapper(Trainer):
    """Calls `self.model` in the loss, which is not wrapped in DDP."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.model(**inputs)["loss"]


class CallsNothingInTheLastMicroBatch(Trainer):
    """Skips each second micro-batch, whose backward pass would synchronise the gradients."""

    calls = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.calls += 1
        if self.calls % 2 == 0:
            return torch.zeros(())
        return super().training_step(model, inputs, num_items_in_batch)


def weights_without_wrapper(
    folder: Path, cls: type[Trainer], accumulation: int, **changes: Any
) -> list[float]:
    """Return the weights after a training whose gradients DDP may not synchronise."""
    torch.manual_seed(3)
    model = Classifier()
    args = TrainingArguments(
        str(folder),
        max_steps=3,
        gradient_accumulation_steps=accumulation,
        **{**QUIET, "save_strategy": "no", **changes},
    )
    cls(model, args, train_dataset=points(64)).train()
    return torch.cat([weight.flatten() for weight in model.parameters()]).tolist()


def refused(
    folder: Path, callback: TrainerCallback, version: int, sharding: str = "full_shard"
) -> str:
    """Return the error of a callback that cannot work on weights that FSDP shards."""
    try:
        trained(folder, [callback], fsdp=sharding, fsdp_config={"version": version})
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    limit = TimeLimitCallback(0.4 if RANK == 1 else 7200)
    stopped = trained(folder / "stopped", [Slow(), limit])
    average, whole_average = EMACallback(0.9), EMACallback(0.9)
    report = RunReportCallback()
    measuring = [
        ThroughputCallback(peak_flops=1e12),
        MemoryCallback(),
        GradientNormCallback(),
        report,
    ]
    changes = {"save_strategy": "steps", "save_steps": 15}
    whole = trained(folder / "whole", [whole_average, *measuring], **changes)
    resumed = trained(
        folder / "whole", [average], resume=str(folder / "whole" / "checkpoint-15"), **changes
    )
    guard = NaNGuardCallback("go_back")
    back = trained(
        folder / "back",
        [guard],
        model=NaNOnOneRank,
        max_steps=6,
        save_strategy="steps",
        save_steps=3,
    )
    checkpoint = load_file(folder / "back" / "checkpoint-3" / "model.safetensors")
    record = {
        "step": stopped.state.global_step,
        "stopped": limit.stopped,
        "max_steps": stopped.state.max_steps,
        "average": [tensor.tolist() for tensor in average.averages.values()],
        "whole_average": [tensor.tolist() for tensor in whole_average.averages.values()],
        "weights": [tensor.tolist() for tensor in resumed.model.parameters()],
        "logs": [entry for entry in whole.state.log_history if "loss" in entry],
        "skipped": guard.skipped,
        "back": all(
            torch.equal(checkpoint[name], weight)
            for name, weight in back.model.state_dict().items()
        ),
        "sets": of_two_sets(folder / "sets"),
        "refused": [
            refused(folder / "averaged1", EMACallback(0.9), 1),
            refused(folder / "averaged2", EMACallback(0.9), 2),
            refused(folder / "measured", GradientNormCallback(), 1),
            refused(folder / "measured_parts", GradientNormCallback(), 1, "shard_grad_op"),
            refused(folder / "averaged_whole", EMACallback(0.9), 1, "no_shard"),
        ],
        "unfrozen": unfrozen_while_training(folder / "unfrozen"),
        "without_wrapper": [
            [
                weights_without_wrapper(folder / "without_wrapper", cls, accumulation)
                for cls in (Trainer, CallsModelWithoutWrapper)
            ]
            for accumulation in (1, 2)
        ],
        "finding_batch_size": weights_without_wrapper(
            folder / "finding", Trainer, 1, auto_find_batch_size=True
        ),
        "skipping": weights_without_wrapper(
            folder / "skipping", CallsNothingInTheLastMicroBatch, 2
        ),
        "read": [read_by_one_process(folder / f"read_by_{reader}", reader) for reader in (0, 1)],
    }
    (folder / f"rank{RANK}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
