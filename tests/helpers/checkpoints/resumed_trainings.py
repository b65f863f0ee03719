"""Data that draws random numbers, and trainings on it that are interrupted and resumed."""

import random
import shutil
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

import lightrainer
from helpers.trainer.tiny_trainings import (
    At,
    make_trainer,
    points,
    tiny,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import Trainer

# in batches of 2 and windows of 2 that is an epoch of 6 steps, the last of them of one batch
SAMPLES = 22
STEPS = 12


def noise() -> float:
    """A little of all three generators."""
    return 0.1 * (float(torch.randn(())) + random.random() + float(np.random.randn()))


class Noisy(Dataset):
    """Samples that are never the same twice; `seen` tells which were asked for, in this process."""

    def __init__(self) -> None:
        self.points = points(SAMPLES)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.seen.append(index)
        point = self.points[index]
        return {"x": point["x"] + noise(), "labels": point["labels"]}


class Stream(IterableDataset):
    """The same, one after the other; each worker has its share."""

    def __init__(self) -> None:
        self.noisy = Noisy()

    def __iter__(self):
        return (self.noisy[index] for index in share(range(SAMPLES)))


class StatefulStream(Stream):
    """One that continues from a given position."""

    position = 0

    def __iter__(self):
        while self.position < SAMPLES:
            self.position += 1
            yield from (self.noisy[index] for index in share([self.position - 1]))
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class ResumableStream(Stream):
    """One whose position stays at the end until the next iteration begins."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.position = 0

    def __iter__(self):
        start = self.start
        self.start = 0
        for index in range(start, SAMPLES):
            self.position = index + 1
            yield from (self.noisy[shard_index] for shard_index in share([index]))

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = self.position = state["position"]


class CountingStream(StatefulStream):
    """One whose order depends on how often it was read."""

    passes = 0

    def __iter__(self):
        order = random.Random(self.passes).sample(range(SAMPLES), SAMPLES)
        while self.position < SAMPLES:
            self.position += 1
            yield from (self.noisy[index] for index in share([order[self.position - 1]]))
        self.position = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
        self.passes = state["passes"]


class LateCountingStream(ResumableStream):
    """The same, but it counts when the next iteration begins, and stays at its end until then."""

    passes = 0
    is_loaded = False

    def __iter__(self):
        if not self.is_loaded:
            self.passes += 1
        self.is_loaded = False
        order = random.Random(self.passes).sample(range(SAMPLES), SAMPLES)
        start = self.start
        self.start = 0
        for position in range(start, SAMPLES):
            self.position = position + 1
            yield from (self.noisy[index] for index in share([order[position]]))

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.passes = state["passes"]
        self.is_loaded = True


class StreamOfRows(IterableDataset):
    """Delegates to a stream of rows, which returns to the state that was loaded in each pass."""

    def __init__(self) -> None:
        self.rows = hub_stream(shuffled=False)

    def __iter__(self):
        return iter(self.rows)

    def state_dict(self) -> dict[str, Any]:
        return self.rows.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.load_state_dict(state)


def share(indices: Any) -> Any:
    worker = get_worker_info()
    return [index for index in indices if worker is None or index % worker.num_workers == worker.id]


def hub_stream(*, shuffled: bool) -> Any:
    import datasets

    def rows(shards: list[int]):
        for shard in shards:
            yield from ({"x": [float(shard + step)] * 8, "labels": step % 3} for step in range(6))

    stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})
    if shuffled:
        stream = stream.shuffle(seed=3, buffer_size=5)
    return stream.map(lambda row: {"x": [value + noise() for value in row["x"]]}).with_format(
        "torch"
    )


def hub_dataset() -> Any:
    """Its `__getitems__` fails for a batch of no samples, as a transform has no columns then."""
    import datasets

    rows = [
        {"x": [index / 10] * 8, "labels": index % 3, "length": index % 5}
        for index in range(SAMPLES)
    ]

    def transform(rows: dict[str, list[Any]]) -> dict[str, Any]:
        x = torch.tensor(rows["x"])
        return {**rows, "x": x + noise(), "labels": torch.tensor(rows["labels"])}

    return datasets.Dataset.from_list(rows).with_transform(transform)


class Own(Mapping[str, Any]):
    """A batch of a class that cannot be written down."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self.batch = batch

    def __getitem__(self, name: str) -> Any:
        return self.batch[name]

    def __iter__(self):
        return iter(self.batch)

    def __len__(self) -> int:
        return len(self.batch)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = lightrainer.default_data_collator(
        [{name: row[name] for name in ("x", "labels")} for row in samples]
    )
    return {**batch, "x": batch["x"] + noise()}


class OwnDraws:
    """A collator with a generator that is made when it is first needed, as that of a masking one
    is, and a state.
    """

    def __init__(self) -> None:
        self.drawing: dict[str, Any] = {
            "numpy": np.random.default_rng(5),
            "python": random.Random(6),
        }
        self.generator: torch.Generator | None = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "numpy": self.drawing["numpy"].bit_generator.state,
            "python": self.drawing["python"].getstate(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawing["numpy"].bit_generator.state = state["numpy"]
        self.drawing["python"].setstate(state["python"])

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        if self.generator is None:
            worker = get_worker_info()
            self.generator = torch.Generator().manual_seed(7 + (0 if worker is None else worker.id))
        drawn = (
            torch.rand((), generator=self.generator)
            + self.drawing["numpy"].random()
            + self.drawing["python"].random()
        )
        batch = lightrainer.default_data_collator(samples)
        return {**batch, "x": batch["x"] + 0.1 * float(drawn)}


class OwnClass(OwnDraws):
    """Its batches cannot be saved, so the last one read is rebuilt."""

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        return Own(super().__call__(samples))


class OwnNoise(Noisy):
    """Samples with their own generator, too."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.RandomState(8)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        point = self.points[index]
        return {
            "x": point["x"] + noise() + 0.1 * float(self.generator.randn()),
            "labels": point["labels"],
        }


class Remembering(Noisy):
    """Samples with a `state_dict`: each is a little larger than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.count += 1
        point = super().__getitem__(index)
        return {"x": point["x"] * (1 + self.count / 100), "labels": point["labels"]}

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class InEpoch(Noisy):
    """Samples that depend on the epoch, with a generator that each epoch seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(8)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.generator = np.random.default_rng(epoch)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        point = super().__getitem__(index)
        return {**point, "x": point["x"] + self.epoch + 0.1 * self.generator.random()}


class StreamInEpoch(Stream):
    """The same as a stream."""

    def __init__(self) -> None:
        self.noisy = InEpoch()

    def set_epoch(self, epoch: int) -> None:
        self.noisy.set_epoch(epoch)


class OwnStream(Stream):
    def __init__(self) -> None:
        self.noisy = OwnNoise()
        self.generator = self.noisy.generator


class OwnOrder(Sampler[int]):
    """A sampler with a generator of numpy, and a `state_dict` for another one."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.generator = np.random.default_rng(9)
        self.first = random.Random(10)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self):
        indices = self.generator.permutation(len(self.data)).tolist()
        start = self.first.randrange(len(self.data))
        return iter(indices[start:] + indices[:start])

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first.setstate(state["first"])


class OrderInSteps(Sampler[int]):
    """A sampler that draws each index when it is needed, between the draws of the steps."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self):
        for _ in range(len(self.data)):
            yield int(torch.randint(len(self.data), ()))


def sampled_by(make: Callable[[Any], Any]) -> type[Trainer]:
    class Sampled(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return make(self.train_dataset)

    return Sampled


def loaded_by(make: Callable[[Any], Any]) -> type[Trainer]:
    class Loaded(Trainer):
        def get_train_dataloader(self) -> Any:
            return make(self.train_dataset)

    return Loaded


def stateful_loader(dataset: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, 2, shuffle=True, collate_fn=collate)


def loader_with_workers(cls: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    """A loader of a class, whose two workers draw in dataset and collator."""
    forked = {"num_workers": 2, "multiprocessing_context": "fork"}

    def make(dataset: Any) -> Any:
        return cls(dataset, 2, collate_fn=OwnDraws(), **{"shuffle": True, **forked, **options})

    return make


def stateful_loader_with_workers(**options: Any) -> Callable[[Any], Any]:
    def make(dataset: Any) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return loader_with_workers(StatefulDataLoader, **options)(dataset)

    return make


class OwnLoader:
    """A loader with a state, and without a length."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.position = 0

    def __iter__(self):
        while self.position < len(self.dataset):
            indices = range(self.position, min(self.position + 2, len(self.dataset)))
            self.position += 2
            yield collate([self.dataset[index] for index in indices])
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(4)


@dataclass(frozen=True)
class Kind:
    """The data of a training, and the way to read it."""

    data: Callable[[], Any] = Noisy
    arguments: dict[str, Any] = field(default_factory=dict)
    collator: Callable[[Any], Any] = collate
    cls: type[Trainer] = Trainer
    needs: str = ""
    """A package."""
    makes_collator: Callable[[], Any] | None = None  # in the place of a collator that has no state


NO_WORKERS = {"num_workers": 0, "multiprocessing_context": None}
UNSEEDED = {"accelerator_config": {"use_seedable_sampler": False}}
LENGTHS = {
    "train_sampling_strategy": "group_by_length",
    "length_column_name": "length",
    "eval_strategy": "no",
}
TOKENS = {
    **LENGTHS,
    "train_sampling_strategy": "token_budget",
    "max_tokens_per_batch": 7,
    "data_seed": 2,
}
TOKENS |= {"per_device_train_batch_size": 8}
KINDS = {
    "samples": Kind(),
    "an unseeded sampler": Kind(arguments=UNSEEDED),
    "a sampler with a generator": Kind(
        arguments=UNSEEDED, cls=sampled_by(lambda data: RandomSampler(data, generator=generator()))
    ),
    "a sampler with a state": Kind(cls=sampled_by(OwnOrder)),
    "a sampler that draws in each step": Kind(cls=sampled_by(OrderInSteps)),
    "samples that depend on the epoch": Kind(InEpoch),
    "a stream that depends on the epoch": Kind(StreamInEpoch),
    "samples with a state": Kind(lambda: Subset(Remembering(), range(SAMPLES))),
    "a weighted sampler": Kind(
        cls=sampled_by(lambda data: WeightedRandomSampler([1.0] * SAMPLES, SAMPLES))
    ),
    "a table": Kind(hub_dataset, needs="datasets"),
    "a table by length": Kind(hub_dataset, LENGTHS, needs="datasets"),
    "a table by tokens": Kind(hub_dataset, TOKENS, needs="datasets"),
    "a stream": Kind(Stream),
    "a stream with a state": Kind(StatefulStream),
    "a stream that counts its passes": Kind(CountingStream),
    "a stream that counts its passes late": Kind(LateCountingStream),
    "a plain DataLoader of a stream that counts its passes": Kind(
        CountingStream, cls=loaded_by(lambda data: DataLoader(data, 2, collate_fn=collate))
    ),
    "a plain DataLoader of a stream that counts its passes late": Kind(
        LateCountingStream, cls=loaded_by(lambda data: DataLoader(data, 2, collate_fn=collate))
    ),
    "a stream around a stream of rows": Kind(StreamOfRows, needs="datasets"),
    "a plain DataLoader of a stream around a stream of rows": Kind(
        StreamOfRows,
        cls=loaded_by(lambda data: DataLoader(data, 2, collate_fn=collate)),
        needs="datasets",
    ),
    "a stream of rows": Kind(lambda: hub_stream(shuffled=False), needs="datasets"),
    "a shuffled stream of rows": Kind(lambda: hub_stream(shuffled=True), needs="datasets"),
    "batches like those of a tokenizer": Kind(collator=lambda samples: UserDict(collate(samples))),
    "batches of a separate class": Kind(collator=lambda samples: Own(collate(samples))),
    "their own generators": Kind(OwnNoise, makes_collator=OwnDraws),
    "a stream with its own generators": Kind(OwnStream, makes_collator=OwnDraws),
    "their own generators, and such batches": Kind(OwnNoise, makes_collator=OwnClass),
    "a plain DataLoader with generators": Kind(
        OwnNoise,
        cls=loaded_by(lambda data: DataLoader(data, 2, shuffle=True, collate_fn=OwnDraws())),
    ),
    "a plain DataLoader": Kind(
        cls=loaded_by(lambda data: DataLoader(data, 2, shuffle=True, collate_fn=collate))
    ),
    "a DataLoader with a generator": Kind(
        cls=loaded_by(
            lambda data: DataLoader(
                data, 2, shuffle=True, collate_fn=collate, generator=generator()
            )
        )
    ),
    "a StatefulDataLoader": Kind(cls=loaded_by(stateful_loader), needs="torchdata"),
    "a loader with a state": Kind(cls=loaded_by(OwnLoader), arguments={"max_steps": STEPS}),
    "a DataLoader with workers": Kind(OwnNoise, cls=loaded_by(loader_with_workers(DataLoader))),
    "a DataLoader with persistent workers": Kind(
        OwnNoise, cls=loaded_by(loader_with_workers(DataLoader, persistent_workers=True))
    ),
    "a stream with persistent workers": Kind(
        OwnStream,
        cls=loaded_by(loader_with_workers(DataLoader, persistent_workers=True, shuffle=None)),
    ),
    "a StatefulDataLoader with workers": Kind(
        OwnNoise, cls=loaded_by(stateful_loader_with_workers()), needs="torchdata"
    ),
    "a StatefulDataLoader with persistent workers": Kind(
        OwnNoise,
        cls=loaded_by(stateful_loader_with_workers(persistent_workers=True)),
        needs="torchdata",
    ),
    "a StatefulDataLoader with generators": Kind(
        OwnNoise,
        cls=loaded_by(stateful_loader_with_workers(**NO_WORKERS)),
        needs="torchdata",
    ),
    "a StatefulDataLoader of a stream": Kind(
        Stream,
        cls=loaded_by(stateful_loader_with_workers(**NO_WORKERS, shuffle=None)),
        needs="torchdata",
    ),
    "a StatefulDataLoader of a stream with a state": Kind(
        ResumableStream,
        cls=loaded_by(stateful_loader_with_workers(**NO_WORKERS, shuffle=None)),
        needs="torchdata",
    ),
    "a StatefulDataLoader of a stream of rows": Kind(
        lambda: hub_stream(shuffled=False),
        cls=loaded_by(stateful_loader_with_workers(**NO_WORKERS, shuffle=None)),
        needs="datasets",
    ),
    "a StatefulDataLoader of a stream around a stream of rows": Kind(
        StreamOfRows,
        cls=loaded_by(stateful_loader_with_workers(**NO_WORKERS, shuffle=None)),
        needs="datasets",
    ),
    "a StatefulDataLoader of a stream with workers": Kind(
        Stream, cls=loaded_by(stateful_loader_with_workers(shuffle=None)), needs="torchdata"
    ),
    "a StatefulDataLoader of a stream with a state and workers": Kind(
        ResumableStream,
        cls=loaded_by(stateful_loader_with_workers(shuffle=None)),
        needs="torchdata",
    ),
    "a StatefulDataLoader of a stream with persistent workers": Kind(
        Stream,
        cls=loaded_by(stateful_loader_with_workers(shuffle=None, persistent_workers=True)),
        needs="torchdata",
    ),
    "a StatefulDataLoader of a stream with a state and persistent workers": Kind(
        ResumableStream,
        cls=loaded_by(stateful_loader_with_workers(shuffle=None, persistent_workers=True)),
        needs="torchdata",
    ),
}


@dataclass
class Run:
    """How a training ended."""

    trainer: Any
    folder: Path

    @property
    def end(self) -> dict[str, Any]:
        """All that has to be the same: the weights are tensors, in the order of their names."""
        state = self.trainer.state
        best = state.best_model_checkpoint
        return {
            "weights": [
                whole(tensor).tolist() for _, tensor in sorted(weights(self.trainer.model).items())
            ],
            "logs": [without_clock(entry) for entry in state.log_history],
            "best": (state.best_metric, state.best_global_step, best and Path(best).name),
            "step": (state.global_step, state.epoch),
        }

    def checkpoint(self, step: int) -> str:
        return str(self.folder / f"checkpoint-{step}")

    def killed_after(self, step: int, folder: Path) -> str:
        """The checkpoint of a step, in a copy of what was there then."""
        for path in self.folder.iterdir():
            if int(path.name.rpartition("-")[2]) <= step:
                shutil.copytree(path, folder / path.name)
        return str(folder / f"checkpoint-{step}")


def whole(tensor: Any) -> torch.Tensor:
    """Of one that is shared out; all processes have to ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def without_clock(entry: dict[str, Any]) -> dict[str, Any]:
    """Without times, and without `train_loss`: it is over the steps that a run took itself, as
    in the reference.
    """
    left_out = ("runtime", "per_second", "_time", "train_loss")
    return {name: value for name, value in entry.items() if not name.endswith(left_out)}


def save(of: Any, state: Any, control: Any) -> None:
    control.should_save = True


def save_and_stop(of: Any, state: Any, control: Any) -> None:
    control.should_save = control.should_training_stop = True


def train(
    folder: Path,
    kind: Kind = KINDS["samples"],
    *,
    saves: tuple[int, ...] = (),
    stop: int | None = None,
    resume: str | bool | None = None,
    **changes: Any,
) -> Run:
    """Train to the end, or to step `stop`; a resumed training begins with other random numbers."""
    data = changes.pop("data", None) or kind.data()
    streams = isinstance(data, IterableDataset) or type(data).__name__ == "IterableDataset"
    callbacks = [At("on_step_end", save, step=step) for step in saves]
    callbacks += [] if stop is None else [At("on_step_end", save_and_stop, step=stop)]
    options = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
    }
    options |= {
        "max_steps": STEPS if streams else -1,
        "eval_strategy": "epoch",
        "logging_steps": 2,
    }
    options |= {"remove_unused_columns": False, "model": tiny()}
    options |= {
        "data_collator": kind.collator if kind.makes_collator is None else kind.makes_collator()
    }
    options |= {"train_dataset": data, "callbacks": [*callbacks, *changes.pop("callbacks", [])]}
    trainer = with_trainer_in_callbacks(
        make_trainer(folder, kind.cls, **{**options, **kind.arguments, **changes})
    )
    if resume is not None:
        torch.manual_seed(999)
        random.seed(999)
        np.random.seed(999)
    trainer.train(resume_from_checkpoint=resume)
    for loader in trainer._eval_dataloaders.values():
        loader.shut_down_workers()
    return Run(trainer, folder)
