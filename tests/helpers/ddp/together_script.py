"""Two ranks with different settings, streams of different lengths, and caught errors; for
`torchrun`.

    torchrun --nproc_per_node=2 together_script.py OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.
"""

import atexit
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from helpers.ddp.fault_actions import Classifier, Points, rank, trainer
from helpers.processes.rank_training import require_end_of_group
from lightrainer import Trainer


class Stream(IterableDataset):
    """So many samples, which differ in each process, or their number does."""

    def __init__(self, count: int, sized: bool = False):
        self.count = count
        if sized:
            self.__class__ = SizedStream

    def __iter__(self):
        yield from (Points(count=self.count)[index] for index in range(self.count))


class SizedStream(Stream):
    """Says that it has ten, whatever it has."""

    def __len__(self):
        return 20


class OwnLoader(Trainer):
    """Each process reads a loader of its own, which is not dealt out."""

    def get_train_dataloader(self):
        return DataLoader(Stream(16 if rank() == 0 else 10), batch_size=2)


class Heard(logging.Handler):
    """Keeps warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record):
        self.said.append(record.getMessage())


def refused(
    folder: Path, model: Any = None, data: Any = None, evaluates: bool = False, **changes: Any
) -> list[str]:
    """Return the messages about a training that cannot begin."""
    made = trainer(folder, model, data, **changes)
    before = [weight.clone() for weight in made.model.parameters()]
    try:
        made.evaluate() if evaluates else made.train()
    except ValueError as error:
        assert all(map(torch.equal, before, made.model.parameters()))
        return str(error).splitlines()
    return []


def mismatches(folder: Path) -> dict[str, Any]:
    """Something is different in the second process."""
    second = rank() == 1

    class Other(Classifier):
        def __init__(self):
            super().__init__()
            if second:
                self.renamed = torch.nn.Linear(8, 3)

    frozen = Classifier()
    frozen.layer.bias.requires_grad_(not second)
    found: dict[str, Any] = {
        name: refused(folder, **{name: values[second]})
        for name, values in {
            "max_steps": (5, 4),
            "learning_rate": (1e-3, 2e-3),
            "eval_strategy": ("no", "steps"),
            "lr_scheduler_kwargs": ({}, {"num_cycles": 2}),
        }.items()
    }
    found["shape"] = refused(folder, Classifier(width=4 if second else 3))
    found["names"] = refused(folder, Other())
    found["frozen"] = refused(folder, frozen)
    found["length"] = refused(folder, data=Points(count=32 - 2 * second))
    uneven = {"data": Points(count=30), "accelerator_config": {"even_batches": False}}
    found["uneven_batches"] = refused(folder, **uneven)
    found["uneven_micro_batches"] = refused(
        folder, gradient_accumulation_steps=2, fsdp=True, **uneven
    )
    found["evaluation"] = refused(folder, evaluates=True, per_device_eval_batch_size=2 + second)
    own = {
        "logging_dir": f"logs{rank()}",
        "run_name": str(rank()),
        "dataloader_num_workers": int(second),
    }
    found["may_differ"] = refused(folder / str(rank()), **own)
    return found


def uneven_evaluations(folder: Path) -> dict[str, Any]:
    """Evaluations whose last round is not full, where `even_batches=False` gives the second
    process less.
    """
    options = {"per_device_eval_batch_size": 4, "accelerator_config": {"even_batches": False}}
    data = Points(count=13)
    made = trainer(
        folder,
        data=data,
        num_train_epochs=-1,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        **options,
    )
    made.eval_dataset = data
    made.compute_metrics = lambda prediction: {"seen": len(prediction.predictions)}
    expected = [data[index]["labels"].item() for index in range(13)]
    made.train()
    evaluated = [entry["eval_seen"] for entry in made.state.log_history if "eval_seen" in entry]
    for _ in range(2):
        evaluated.append(made.evaluate()["eval_seen"])
    predicted = made.predict(data)
    own = [len(batch["labels"]) for batch in made.get_eval_dataloader()]
    same = predicted.label_ids.tolist() == expected
    return {
        "evaluated": evaluated,
        "predicted": len(predicted.predictions),
        "same": same,
        "own_loop": own,
    }


def counted(made: Trainer) -> list[Any]:
    """Steps, and how many samples this process trained with."""
    seen: list[int] = []
    made.model.register_forward_pre_hook(
        lambda model, args, kwargs: seen.append(len(kwargs["x"])), with_kwargs=True
    )
    made.train()
    return [made.state.global_step, sum(seen), round(made.state.epoch or 0, 3)]


def uneven(folder: Path, heard: Heard) -> dict[str, Any]:
    """Streams that give one process less."""

    def told(work: Any) -> list[Any]:
        logging.getLogger("lightrainer").setLevel(logging.WARNING)
        heard.said.clear()
        return [work(), [line for line in heard.said if "All stop" in line or "left out" in line]]

    count = 24 if rank() == 0 else 16
    streams = {
        "stream": (Stream(count), {"max_steps": 10}),
        "sized": (Stream(count, sized=True), {}),
        "read_alone": (
            Stream(count),
            {"max_steps": 6, "accelerator_config": {"dispatch_batches": False}},
        ),
        "same": (Stream(22), {"max_steps": 8}),
    }
    found = {}
    for name, (data, changes) in streams.items():
        found[name] = told(
            lambda data=data, changes=changes: counted(trainer(folder, data=data, **changes))
        )
    made = trainer(folder, max_steps=7)
    made.__class__ = OwnLoader
    found["own_loader"] = told(lambda: counted(made))
    evaluated = trainer(folder)
    evaluated.compute_metrics = lambda prediction: {"seen": len(prediction.label_ids)}
    for name, number in {"evaluated": count, "evaluated_same": 13}.items():
        found[name] = told(lambda number=number: evaluated.evaluate(Stream(number))["eval_seen"])
    empty = trainer(folder, data=Stream(count if rank() == 0 else 0), max_steps=4)
    try:
        empty.train()
    except ValueError as error:
        found["empty"] = str(error)
    return found


def ends(folder: Path) -> dict[str, Any]:
    """An error in both processes at once, which the script catches, ends no process; nor does a
    second training.
    """
    errors = {
        "other class": ArithmeticError(f"of {rank()}"),
        "same text": RuntimeError("of both"),
        "other text": RuntimeError(f"of {rank()}"),
    }
    found: dict[str, Any] = {}
    for name, error in errors.items():

        def fail(error: Exception = error) -> None:
            raise error

        try:
            trainer(folder, Classifier(fail)).train()
        except (ArithmeticError, RuntimeError) as caught:
            found[name] = [type(caught).__name__, str(caught)]
    found["steps"] = [trainer(folder).train().global_step for _ in range(2)]
    return found


def main(folder: Path) -> None:
    heard = Heard()
    logging.getLogger("lightrainer").addHandler(heard)
    found = {
        "mismatches": mismatches(folder),
        "uneven": uneven(folder, heard),
        "ends": ends(folder),
    }
    found["uneven_evaluations"] = uneven_evaluations(folder)
    (folder / f"rank{rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    atexit.register(require_end_of_group)  # first to be registered, so last to run
    main(Path(sys.argv[1]))
