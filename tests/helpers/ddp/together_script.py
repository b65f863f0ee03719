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

from helpers.ddp.fault_actions import Classifier, Points, make_trainer, rank
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
    """Each process reads its own loader, which is not split between them."""

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
    trainer = make_trainer(folder, model, data, **changes)
    before = [weight.clone() for weight in trainer.model.parameters()]
    try:
        trainer.evaluate() if evaluates else trainer.train()
    except ValueError as error:
        assert all(map(torch.equal, before, trainer.model.parameters()))
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
    results: dict[str, Any] = {
        name: refused(folder, **{name: values[second]})
        for name, values in {
            "max_steps": (5, 4),
            "learning_rate": (1e-3, 2e-3),
            "eval_strategy": ("no", "steps"),
            "lr_scheduler_kwargs": ({}, {"num_cycles": 2}),
        }.items()
    }
    results["shape"] = refused(folder, Classifier(width=4 if second else 3))
    results["names"] = refused(folder, Other())
    results["frozen"] = refused(folder, frozen)
    results["length"] = refused(folder, data=Points(count=32 - 2 * second))
    uneven = {"data": Points(count=30), "accelerator_config": {"even_batches": False}}
    results["uneven_batches"] = refused(folder, **uneven)
    results["uneven_micro_batches"] = refused(
        folder, gradient_accumulation_steps=2, fsdp=True, **uneven
    )
    results["evaluation"] = refused(folder, evaluates=True, per_device_eval_batch_size=2 + second)
    allowed = {
        "logging_dir": f"logs{rank()}",
        "run_name": str(rank()),
        "dataloader_num_workers": int(second),
    }
    results["may_differ"] = refused(folder / str(rank()), **allowed)
    return results


def uneven_evaluations(folder: Path) -> dict[str, Any]:
    """Evaluations whose last round is not full, where `even_batches=False` gives the second
    process less.
    """
    options = {"per_device_eval_batch_size": 4, "accelerator_config": {"even_batches": False}}
    data = Points(count=13)
    trainer = make_trainer(
        folder,
        data=data,
        num_train_epochs=-1,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        **options,
    )
    trainer.eval_dataset = data
    trainer.compute_metrics = lambda prediction: {"seen": len(prediction.predictions)}
    expected = [data[index]["labels"].item() for index in range(13)]
    trainer.train()
    evaluated = [entry["eval_seen"] for entry in trainer.state.log_history if "eval_seen" in entry]
    for _ in range(2):
        evaluated.append(trainer.evaluate()["eval_seen"])
    predicted = trainer.predict(data)
    loop_sizes = [len(batch["labels"]) for batch in trainer.get_eval_dataloader()]
    same = predicted.label_ids.tolist() == expected
    return {
        "evaluated": evaluated,
        "predicted": len(predicted.predictions),
        "same": same,
        "own_loop": loop_sizes,
    }


def counted(made: Trainer) -> list[Any]:
    """Steps, and how many samples this process trained with."""
    sizes: list[int] = []
    made.model.register_forward_pre_hook(
        lambda model, args, kwargs: sizes.append(len(kwargs["x"])), with_kwargs=True
    )
    made.train()
    return [made.state.global_step, sum(sizes), round(made.state.epoch or 0, 3)]


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
    results = {}
    for name, (data, changes) in streams.items():
        results[name] = told(
            lambda data=data, changes=changes: counted(make_trainer(folder, data=data, **changes))
        )
    trainer = make_trainer(folder, max_steps=7)
    trainer.__class__ = OwnLoader
    results["own_loader"] = told(lambda: counted(trainer))
    evaluated = make_trainer(folder)
    evaluated.compute_metrics = lambda prediction: {"seen": len(prediction.label_ids)}
    for name, number in {"evaluated": count, "evaluated_same": 13}.items():
        results[name] = told(lambda number=number: evaluated.evaluate(Stream(number))["eval_seen"])
    empty = make_trainer(folder, data=Stream(count if rank() == 0 else 0), max_steps=4)
    try:
        empty.train()
    except ValueError as error:
        results["empty"] = str(error)
    return results


def ends(folder: Path) -> dict[str, Any]:
    """An error in both processes at once, which the script catches, ends no process; nor does a
    second training.
    """
    errors = {
        "other class": ArithmeticError(f"of {rank()}"),
        "same text": RuntimeError("of both"),
        "other text": RuntimeError(f"of {rank()}"),
    }
    outcomes: dict[str, Any] = {}
    for name, error in errors.items():

        def fail(error: Exception = error) -> None:
            raise error

        try:
            make_trainer(folder, Classifier(fail)).train()
        except (ArithmeticError, RuntimeError) as caught:
            outcomes[name] = [type(caught).__name__, str(caught)]
    outcomes["steps"] = [make_trainer(folder).train().global_step for _ in range(2)]
    return outcomes


def main(folder: Path) -> None:
    heard = Heard()
    logging.getLogger("lightrainer").addHandler(heard)
    record = {
        "mismatches": mismatches(folder),
        "uneven": uneven(folder, heard),
        "ends": ends(folder),
    }
    record["uneven_evaluations"] = uneven_evaluations(folder)
    (folder / f"rank{rank()}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    atexit.register(require_end_of_group)  # first to be registered, so last to run
    main(Path(sys.argv[1]))
