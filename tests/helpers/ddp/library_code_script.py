"""Trainings with what libraries do around a Trainer, in two processes of each library.

    python library_code_script.py OUTPUT_FOLDER

Each process writes what it saw to `LIBRARY-rank<rank>.json` there.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data._utils import fetch

import lightrainer
import lightrainer.facade.trainer.lightning_trainer  # not again in each process
import lightrainer.facade.trainer.trainer_module  # nor this
from helpers.processes.forking import forked
from helpers.processes.rank_training import QUIET, Classifier, points, timeless

for api in (lightrainer, transformers):
    api.Trainer, api.TrainingArguments  # noqa: B018 - imported when they are first accessed

BINS = [[[4 * step, 4 * step + 1], [4 * step + 2, 4 * step + 3]] for step in range(8)]
"""Eight batches of two bins each."""


class PackingFetcher(fetch._MapDatasetFetcher):
    """Reads the samples of all bins of a batch."""

    def fetch(self, possibly_batched_index: list[Any]) -> Any:
        if isinstance(possibly_batched_index[0], list):
            possibly_batched_index = [i for indices in possibly_batched_index for i in indices]
        return super().fetch(possibly_batched_index)


class DoublingFetcher(fetch._IterableDatasetFetcher):
    """Collates each batch of a stream twice as long."""

    def fetch(self, possibly_batched_index: list[Any]) -> Any:
        collate = self.collate_fn
        self.collate_fn = lambda samples: collate(samples * 2)
        try:
            return super().fetch(possibly_batched_index)
        finally:
            self.collate_fn = collate


class Bins(torch.utils.data.BatchSampler):
    def __init__(self) -> None:
        self.batch_size = 2
        self.drop_last = False

    def __iter__(self) -> Any:
        return iter(BINS)

    def __len__(self) -> int:
        return len(BINS)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(points(32))


class Shifting:
    """Collator of evaluations; counts its batches."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, samples: list[Any]) -> Any:
        self.count += 1
        batch = default_collate(samples)
        return {**batch, "x": batch["x"] + 1}


def made(api: Any, base: type, folder: Path, train_dataset: Any, **changes: Any) -> Any:
    options = {"max_steps": 4, "per_device_train_batch_size": 4, "ddp_timeout": 60, **QUIET}
    options |= {"logging_steps": 1, "save_strategy": "no", "learning_rate": 0.05, **changes}
    torch.manual_seed(7)
    return base(
        Classifier(),
        api.TrainingArguments(str(folder), **options),
        train_dataset=train_dataset,
        eval_dataset=points(10, seed=2),
    )


def seen(trainer: Any) -> dict[str, Any]:
    state = trainer.model.state_dict()
    return {
        "weights": {name: value.flatten().tolist() for name, value in state.items()},
        "history": timeless(trainer.state.log_history),
    }


def fetched(api: Any, folder: Path, workers: int, *, streams: bool) -> dict[str, Any]:
    """Train with fetchers that a library has put into torch."""

    class Packing(api.Trainer):
        def get_train_dataloader(self) -> Any:
            loader = DataLoader(
                self.train_dataset,
                batch_sampler=Bins(),
                num_workers=workers,
                collate_fn=self.data_collator,
            )
            return self.accelerator.prepare_data_loader(loader)

    originals = fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher
    fetch._MapDatasetFetcher = PackingFetcher
    fetch._IterableDatasetFetcher = DoublingFetcher
    try:
        base = api.Trainer if streams else Packing
        data = Stream() if streams else points(32)
        trainer = made(api, base, folder, data, dataloader_num_workers=workers)
        trainer.train()
    finally:
        fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher = originals
    return seen(trainer)


def written(api: Any, folder: Path, **changes: Any) -> dict[str, Any]:
    """Train with an override and a callback that write into checkpoints, from both processes."""

    def write(trainer: Any, name: str) -> None:
        args = trainer.args
        place = Path(args.output_dir, f"checkpoint-{trainer.state.global_step}", "counts")
        place.mkdir(parents=True, exist_ok=True)
        place.joinpath(f"{name}-{args.process_index}.txt").write_text(name)

    class Counting(api.Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            write(self, "before")
            super()._save_checkpoint(model, trial)
            write(self, "after")

    class Writing(api.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 2 == 0:
                write(trainer, "step")

    saving = {"save_strategy": "steps", "save_steps": 2, **changes}
    trainer = made(api, Counting, folder, points(32), **saving)
    trainer.add_callback(Writing())
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("counts/*.txt"))
    return {**seen(trainer), "files": files}


def collated(api: Any, folder: Path) -> dict[str, Any]:
    """Evaluate and predict with a collator that a subclass keeps for evaluations."""

    class Shifted(api.Trainer):
        def __init__(self, *positional: Any, **keywords: Any) -> None:
            self.eval_data_collator = Shifting()
            super().__init__(*positional, **keywords)

        def _get_dataloader(self, *positional: Any, **keywords: Any) -> Any:
            train_collator = self.data_collator
            if not keywords.get("is_training"):
                self.data_collator = self.eval_data_collator
            try:
                return super()._get_dataloader(*positional, **keywords)
            finally:
                self.data_collator = train_collator

    trainer = made(api, Shifted, folder, points(32), eval_strategy="steps", eval_steps=2)
    trainer.train()
    data = {"a": points(6, seed=3), "b": points(9, seed=4)}
    metrics = [trainer.evaluate(data), trainer.predict(data["b"]).metrics]
    return {
        **seen(trainer),
        "metrics": timeless(metrics),
        "count": trainer.eval_data_collator.count,
    }


def gathered(api: Any, folder: Path, train_dataset: Any, **changes: Any) -> dict[str, Any]:
    """Return what a loss gathers for metrics, whether the epoch ends there, and rows gathered
    afterwards.
    """
    observations = []

    class Gathering(api.Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
        ) -> Any:
            rows = self.accelerator.gather_for_metrics(inputs["x"])
            ends = self.accelerator.gradient_state.end_of_dataloader
            observations.append([self.model.training, rows.tolist(), ends])
            return super().compute_loss(model, inputs, return_outputs, **kwargs)

    class Reading(api.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            observations.append(trainer.accelerator.gradient_state.end_of_dataloader)

    trainer = made(api, Gathering, folder, train_dataset, **changes)
    trainer.add_callback(Reading())
    trainer.train()
    rows = trainer.accelerator.gather_for_metrics(torch.arange(8))
    return {"steps": observations, "afterwards": len(rows)}


def read(api: Any, folder: Path) -> list[Any]:
    """Return the rows gathered from loaders that a callback and the script read."""
    gathered_rows = []

    def gather(count: int) -> None:
        for batch in trainer.get_eval_dataloader(points(count)):
            gathered_rows.append(trainer.accelerator.gather_for_metrics(batch["x"]).tolist())

    class Reading(api.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            gather(11)

    options = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    trainer = made(api, api.Trainer, folder, points(18), max_steps=3, **options)
    trainer.add_callback(Reading())
    gather(13)
    trainer.train()
    gather(9)
    return gathered_rows


class Detector(torch.nn.Linear):
    def forward(self, x: torch.Tensor, labels: Any) -> dict[str, torch.Tensor]:
        scores = super().forward(x)
        loss = torch.stack([label["boxes"].sum() for label in labels]).sum() * scores.mean()
        return {"loss": loss, "logits": scores}


def detected(api: Any, folder: Path, *, joins: bool) -> Any:
    """Return the labels of an evaluation that have a row for each box of an image."""
    samples = points(11)
    for index, sample in enumerate(samples):
        boxes = torch.full((1 + (3 * index) % 5, 2), float(index))
        sample["labels"] = {"boxes": boxes}

    def collate(images: list[Any]) -> dict[str, Any]:
        labels = [image["labels"] for image in images]
        return {"x": torch.stack([image["x"] for image in images]), "labels": labels}

    options = {"per_device_eval_batch_size": 4, "eval_do_concat_batches": joins, **QUIET}
    arguments = api.TrainingArguments(str(folder), ddp_timeout=60, **options)
    trainer = api.Trainer(Detector(8, 2), arguments, data_collator=collate)
    labels = trainer.predict(samples).label_ids
    if not joins:
        labels = [label for batch in labels for label in batch]
    return [label["boxes"].tolist() for label in labels]


def run(api: Any, folder: Path) -> None:
    place = folder / api.__name__
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}
    record = {
        "packing": fetched(api, place / "packing", 0, streams=False),
        "packing by a worker": fetched(api, place / "workers", 1, streams=False),
        "a stream": fetched(api, place / "stream", 0, streams=True),
        "a stream by a worker": fetched(api, place / "stream workers", 1, streams=True),
        "files": written(api, place / "files"),
        "files, weights only": written(api, place / "only", save_only_model=True),
        "files, best": written(api, place / "best", save_total_limit=1, **best),
        "collator": collated(api, place / "collator"),
        "read": read(api, place / "read"),
        **gatherings(api, place),
    }
    # The reference cannot gather tensors of different shapes.
    if api is lightrainer:
        for joins in (True, False):
            record[f"detected, joined {joins}"] = detected(api, place / "detected", joins=joins)
    rank = os.environ["RANK"]
    (folder / f"{api.__name__}-rank{rank}.json").write_text(json.dumps(record))


def gatherings(api: Any, place: Path) -> dict[str, Any]:
    """Gather from epochs whose last round is full, padded, dropped, or of a stream."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 1}
    return {
        "gathered": gathered(api, place / "padded", points(18), **evaluated),
        "gathered, accumulated": gathered(
            api, place / "accumulated", points(18), gradient_accumulation_steps=2
        ),
        "gathered, full": gathered(api, place / "full", points(16)),
        "gathered, dropped": gathered(
            api, place / "dropped", points(18), dataloader_drop_last=True
        ),
        "gathered, stream": gathered(
            api, place / "gathered stream", Stream(), accelerator_config={"dispatch_batches": False}
        ),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for api in (transformers, lightrainer):
        ended = forked(
            partial(run, api, folder), 2, log=folder / f"{api.__name__}.log", seconds=200
        )
        if any(ended.codes):
            sys.exit(f"{api.__name__}: {ended.codes}\n{ended.said[-5000:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
