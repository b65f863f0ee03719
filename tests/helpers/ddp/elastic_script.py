"""Trainings that resume with another number of processes or another batch size; forks them itself.

elastic_script.py FOLDER

Prints one JSON object: for each case how the whole training went, and how it went on from its
checkpoints.
"""

import json
import os
import pickle
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SubsetRandomSampler, default_collate

from helpers.processes.forking import forked
from helpers.processes.rank_training import QUIET, Classifier, Stream, points
from lightrainer import Trainer, TrainerCallback, TrainingArguments
from lightrainer.lightning_modules.internals import (
    lightning_internals,
)  # imported before the forks

assert lightning_internals
SAMPLES = 48


class Model(Classifier):
    """Notes which samples it is trained with. No dropout: that draws other numbers with other
    batches.
    """

    def __init__(self) -> None:
        torch.manual_seed(7)
        super().__init__()
        self.seen: list[list[int]] = []

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor, index: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append(index.tolist())
        return super().forward(x, labels)


class Steps(TrainerCallback):
    """Cuts what the model noted into steps; stops after one of them if asked to."""

    def __init__(self, model: Model, stop: int | None) -> None:
        self.model, self.stop = model, stop
        self.steps: dict[int, list[list[int]]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps[state.global_step], self.model.seen = self.model.seen, []
        control.should_save = control.should_save and state.global_step in SAVED
        control.should_training_stop = (
            control.should_training_stop or state.global_step == self.stop
        )


def items() -> list[dict[str, Any]]:
    return [
        {**sample, "index": i, "input_ids": [0] * (i * 7 % 11)}
        for i, sample in enumerate(points(SAMPLES))
    ]


class OwnSampler(Trainer):
    """Draws its order from the global generator."""

    def _get_train_sampler(self, train_dataset=None):
        return SubsetRandomSampler(range(SAMPLES))


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return default_collate(
        [{name: sample[name] for name in ("x", "labels", "index")} for sample in samples]
    )


BY_LENGTH = {"train_sampling_strategy": "group_by_length"}
BY_TOKENS = {
    "train_sampling_strategy": "token_budget",
    "max_tokens_per_batch": 16,
    "per_device_train_batch_size": 8,
}
UNSEEDED = {"accelerator_config": {"use_seedable_sampler": False}}
DISPATCHED = {"accelerator_config": {"dispatch_batches": True}}
SPLIT = {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 4}
CASES: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "one batch a step": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
    "by length": BY_LENGTH,
    "by tokens": BY_TOKENS,
    "unseeded": UNSEEDED,
    "unseeded, from one process": {**UNSEEDED, "gradient_accumulation_steps": 4},
    "own sampler, from one process": {"gradient_accumulation_steps": 4, "cls": OwnSampler},
    "a stream": {"max_steps": 12},
    "dispatched": DISPATCHED,
    "split": SPLIT,
}
# By case: processes, step of the checkpoint, changed arguments.
RESUMED: dict[str, list[tuple[int, int, dict[str, int]]]] = {
    "shuffled": [
        *((1, 3, {}), (4, 3, {}), (1, 6, {}), (4, 8, {})),
        (1, 4, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}),
        (4, 4, {"per_device_train_batch_size": 1}),
        (2, 4, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}),
        (1, 12, {}),
    ],
    "one batch a step": [(1, 3, {}), (4, 3, {})],
    "by length": [(1, 3, {}), (4, 8, {})],
    "by tokens": [(1, 3, {}), (4, 8, {}), (2, 4, {})],
    "unseeded": [(1, 3, {}), (4, 4, {})],
    "unseeded, from one process": [(2, 3, {}), (2, 8, {})],
    "own sampler, from one process": [(2, 3, {})],
    "a stream": [(1, 3, {}), (4, 8, {})],
    "dispatched": [(1, 3, {}), (4, 3, {})],
    "split": [(1, 3, {}), (4, 3, {})],
}
OTHER_STEPS: list[tuple[int, int, dict[str, int]]] = [
    (3, 3, {}),
    (2, 3, {"per_device_train_batch_size": 8}),
]
"""Those after which a step takes other samples."""
SAVED = {3, 4, 5, 6, 8, 12}
"""The steps from which some training resumes."""
CHAIN = ((2, 3), (1, 5), (4, 8), (2, None))
"""Processes, and the step after which they are stopped: the same arguments all the time."""


def train(
    folder: Path, output: Path, resume: Path | None, stop: int | None, **changes: Any
) -> None:
    """Train to the end, or to a step, and record how it went in this process."""
    options = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        **QUIET,
    }
    options |= {
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    options |= {
        "remove_unused_columns": False,
        "ddp_timeout": 60,
        "ddp_find_unused_parameters": False,
    }
    options["optim"] = "adamw_torch"
    model, data = Model(), items()
    cls = changes.pop("cls", Trainer)
    steps = Steps(model, stop)
    if resume is not None and stop is None:
        changes["save_strategy"] = "no"  # not resumed from
    arguments = TrainingArguments(str(output), **{**options, **changes})
    dataset = Stream(data) if "max_steps" in changes else data
    trainer = cls(model, arguments, train_dataset=dataset, data_collator=collate, callbacks=[steps])
    if resume is not None:
        torch.manual_seed(99)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    record = {
        "steps": steps.steps,
        "weights": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "global_step": trainer.state.global_step,
        "given": trainer.args is arguments and arguments.gradient_accumulation_steps,
    }
    rank = os.environ.get("RANK", "0")
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(record))


def run(
    folder: Path,
    output: Path,
    processes: int,
    resume: Path | None = None,
    stop: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return what all processes did: the samples of each step in their order, and what process 0
    ended with.
    """
    folder.mkdir(parents=True)
    ended = forked(
        partial(train, folder, output, resume, stop, **changes), processes, log=folder / "log.txt"
    )
    if any(ended.codes):
        sys.exit(f"{folder}: {ended.codes}\n{ended.said[-6000:]}")
    ranks = [
        pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in range(processes)
    ]
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)
    steps = {step: in_order([rank["steps"][step] for rank in ranks]) for step in ranks[0]["steps"]}
    warned = [line for line in ended.said.splitlines() if "Training continues with" in line]
    return {**ranks[0], "steps": steps, "warned": warned}


def in_order(ranks: list[list[list[int]]]) -> list[int]:
    """The samples of a step as they come in the epoch: a batch of each process in turn."""
    return [index for batches in zip(*ranks, strict=True) for batch in batches for index in batch]


def resumed(
    folder: Path, out: Path, cases: list[Any], changes: dict[str, Any]
) -> list[dict[str, Any]]:
    return [
        run(
            folder / str(n),
            folder / str(n) / "out",
            processes,
            out / f"checkpoint-{step}",
            **{**changes, **others},
        )
        for n, (processes, step, others) in enumerate(cases)
    ]


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder, report = Path(sys.argv[1]), {}
    for name, changes in CASES.items():
        place = folder / name
        processes = 1 if "from one" in name else 2
        report[name] = {"whole": run(place / "whole", place / "out", processes, **changes)}
        report[name]["resumed"] = resumed(place, place / "out", RESUMED[name], changes)
    report["other steps"] = {
        "resumed": resumed(folder / "other", folder / "shuffled" / "out", OTHER_STEPS, {})
    }
    place, before, report["chain"] = folder / "chain", None, []
    for number, (processes, stop) in enumerate(CHAIN):
        report["chain"].append(run(place / str(number), place / "out", processes, before, stop))
        before = place / "out" / f"checkpoint-{stop}"
    print(json.dumps(report))


if __name__ == "__main__":
    main()
