"""Batches sharded over two ranks, and predictions gathered from them; for `torchrun`.

Each rank writes down which samples it read and saw.

    torchrun --nproc_per_node=2 batch_sharding_script.py LIBRARY SCENARIO OUTPUT_FOLDER
"""

import hashlib
import importlib
import json
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

from helpers.processes.rank_training import QUIET, Classifier, leave_group, weighing

RANK = int(os.environ.get("RANK", "0"))
# streams have 30: a batch left over would take a step here, but not there
TRAINED, EVALUATED = 22, 13

EACH = {"sync_each_batch": True, "num_steps": 2}
GROUPED = {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "stream": {"stream": True, "trained": 30},
    "split": {"config": {"split_batches": True}},
    "split stream": {"config": {"split_batches": True}, "stream": True, "trained": 30},
    "dispatched": {"config": {"dispatch_batches": True}},
    "dispatched stream": {"config": {"dispatch_batches": True}, "stream": True, "trained": 30},
    "dispatched and split": {"config": {"dispatch_batches": True, "split_batches": True}},
    "dispatched and split stream": {
        "config": {"dispatch_batches": True, "split_batches": True},
        "stream": True,
        "trained": 30,
    },
    "stream that each reads": {
        "config": {"dispatch_batches": False},
        "stream": True,
        "trained": 30,
    },
    "split stream that each reads": {
        "config": {"dispatch_batches": False, "split_batches": True},
        "stream": True,
        "trained": 30,
    },
    "dropped": {"dataloader_drop_last": True},
    "dropped and dispatched": {"dataloader_drop_last": True, "config": {"dispatch_batches": True}},
    "uneven": {"config": {"even_batches": False}, "trained": 20, "evaluated": 12},
    "global order": {"config": {"use_seedable_sampler": False}},
    "global order, apart": {"config": {"use_seedable_sampler": False}, "apart": True},
    "global order, dispatched": {
        "config": {"use_seedable_sampler": False, "dispatch_batches": True}
    },
    "global order, workers of the first process": {
        "config": {"use_seedable_sampler": False, "dispatch_batches": True},
        "dataloader_num_workers": 2,
    },
    "grouped": GROUPED,
    "grouped, apart": {**GROUPED, "apart": True},
    "exchanged each time": {
        "config": {"gradient_accumulation_kwargs": EACH},
        "gradient_accumulation_steps": 1,
    },
    "static graph": {"ddp_static_graph": True, "ddp_find_unused_parameters": False},
    "tokens": {"counted": True},
    "tokens of each": {"counted": True, "average_tokens_across_devices": False},
    "workers": {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3, "noisy": True},
}


class Indexed(Dataset):
    """Samples that say which they are, and are noted when they are read."""

    def __init__(self, count: int, noisy: bool = False, hidden: bool = False):
        generator = torch.Generator().manual_seed(count)
        self.features = torch.randn(count, 8, generator=generator)
        self.noisy, self.hidden = noisy, hidden
        self.reads: list[int] = []

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        self.reads.append(index)
        x = self.features[index]
        noise = 0.1 * torch.randn(8) + numpy.random.rand() + random.random() if self.noisy else 0.0
        ids = list(range(1 + index % 5))
        label = torch.tensor(-100) if self.hidden and index % 5 == 1 else x[:3].argmax()
        return {"x": x + noise, "labels": label, "index": torch.tensor(index), "input_ids": ids}


class Stream(IterableDataset):
    def __init__(self, data: Indexed):
        self.data = data

    @property
    def reads(self):
        return self.data.reads

    def __iter__(self):
        return (self.data[index] for index in range(len(self.data)))


class Seeing(Classifier):
    """A classifier with dropout that notes which samples it saw."""

    def __init__(self):
        super().__init__(dropout=0.2)
        self.trained: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def noted(self, x, labels, index):
        (self.trained if self.training else self.evaluated).append(index.tolist())
        return Classifier.forward(self, x, labels)

    def forward(self, x, labels, index):
        return {"loss": self.noted(x, labels, index)["loss"], "index": index}


class Counting(Seeing):
    """Divides by the number of labels in the whole window, when it is told."""

    def forward(self, x, labels, index, num_items_in_batch=None, **kwargs):
        logits = self.noted(x, labels, index)["logits"]
        total = functional.cross_entropy(logits, labels, reduction="sum")
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / count, "index": index}


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        key: torch.stack([sample[key] for sample in samples]) for key in ("x", "labels", "index")
    }


def gradients(model: nn.Module) -> float:
    return sum(float(p.grad.double().abs().sum()) for p in model.parameters() if p.grad is not None)


def seen_in(api: Any, name: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train, evaluate and predict once."""
    case = dict(case)
    stream, apart, noisy, counted = (
        case.pop(key, False) for key in ("stream", "apart", "noisy", "counted")
    )
    config = case.pop("config", {})
    data = [
        Indexed(case.pop(key, count), noisy, counted)
        for key, count in (("trained", TRAINED), ("evaluated", EVALUATED))
    ]
    halves: list[float] = []

    class Substeps(api.TrainerCallback):
        def on_substep_end(self, args, state, control, model=None, **kwargs):
            halves.append(gradients(model))

    keywords: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 2,
        "max_steps": 5,
    }
    keywords |= {
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    keywords |= {
        "eval_strategy": "steps",
        "eval_steps": 3,
        "ddp_timeout": 60,
        "accelerator_config": config,
    }
    keywords |= {**QUIET, **case}
    if api.__name__ == "transformers":
        keywords.pop("ddp_static_graph", None)
    trainer_class = weighing(api.Trainer) if api.__name__ == "transformers" else api.Trainer
    torch.manual_seed(7)
    trainer = trainer_class(
        model=Counting() if counted else Seeing(),
        args=api.TrainingArguments(str(folder / name), **keywords),
        train_dataset=Stream(data[0]) if stream else data[0],
        eval_dataset=Stream(data[1]) if stream else data[1],
        data_collator=collate,
        callbacks=[Substeps()],
    )
    if api.__name__ == "transformers":
        # 5.3.0 divides by the number of micro-batches twice; later versions do not.
        trainer.accelerator.gradient_accumulation_steps = 1
    if apart:
        torch.manual_seed(100 + RANK)
    trainer.train()
    prediction = trainer.predict(Stream(data[1]) if stream else data[1])
    index = (
        prediction.predictions[0]
        if isinstance(prediction.predictions, tuple)
        else prediction.predictions
    )
    return {
        "trained": trainer.model.trained,
        "evaluated": trainer.model.evaluated,
        "read": [part.reads for part in data],
        "predicted": index.tolist(),
        "halves": halves,
        "history": trainer.state.log_history,
        "sums": {
            key: float(tensor.double().sum()) for key, tensor in trainer.model.state_dict().items()
        },
        "generator": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "batch": trainer.state.train_batch_size,
        "accumulation": trainer.args.gradient_accumulation_steps,
    }


class Finder(nn.Module):
    """Gives a list with something for each sample, of different lengths, and in a dict with
    texts if it is asked to.
    """

    def __init__(self, texts: bool):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.texts = texts

    def forward(self, x, labels):
        detections = [
            self.scale * row[: 1 + len(label["area"])].outer(row[:4])
            for row, label in zip(x, labels, strict=True)
        ]
        loss = torch.stack([boxes.square().mean() for boxes in detections]).mean()
        if not self.texts:
            return {"loss": loss, "boxes": detections}
        return {
            "loss": loss,
            "out": {"boxes": detections, "text": [f"{len(boxes)} found" for boxes in detections]},
        }


def targets(samples: list[dict]) -> dict[str, Any]:
    labels = [
        {"area": torch.full((1 + index % 3,), float(index)), "index": torch.tensor([index])}
        for index in (int(sample["index"]) for sample in samples)
    ]
    return {"x": torch.stack([sample["x"] for sample in samples]), "labels": labels}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def objects_in(api: Any, folder: Path, *, concatenate: bool) -> dict[str, Any]:
    """Predict once: the reference forgets the argument after that."""
    options = {
        "eval_use_gather_object": True,
        "eval_do_concat_batches": concatenate,
        "remove_unused_columns": False,
    }
    options |= {"per_device_eval_batch_size": 2, "label_names": ["labels"]}
    arguments = api.TrainingArguments(str(folder / "objects"), **options, **QUIET)
    trainer = api.Trainer(model=Finder(concatenate), args=arguments, data_collator=targets)
    prediction = trainer.predict(Indexed(EVALUATED))
    result = {"predictions": plain(prediction.predictions), "labels": plain(prediction.label_ids)}
    return {**result, "loss": prediction.metrics["test_loss"]}


def sent() -> dict[str, Any]:
    """Batches of all shapes that process 0 sends: widths differ, and there is more than tensors
    in them.
    """
    from lightrainer.lightning_modules.data.loaders import build_loader

    def ragged(indices: list[int]) -> dict[str, Any]:
        matrix = torch.full((len(indices), 1 + indices[0]), indices[0], dtype=torch.bfloat16)
        pair = (torch.tensor(indices) > 3, [f"sample {i}" for i in indices])
        return {"matrix": matrix, "pair": pair, "whole": None}

    batches: dict[str, Any] = {}
    options = {"batch_size": 2, "rank": RANK, "world_size": 2, "dispatch_batches": True}
    for name, count in (("even", 8), ("filled", 7)):
        batches[name] = [
            plain({**batch, "matrix": [str(batch["matrix"].dtype), *batch["matrix"].shape]})
            for batch in build_loader(range(count), collate_fn=ragged, **options)
        ]
    failing: dict[str, tuple[Any, Any]] = {
        "error": (Broken(), None),
        "ragged end": (Stream(Indexed(7)), lambda items: ragged([int(i["index"]) for i in items])),
        "unsendable": (range(8), lambda indices: {"x": torch.tensor(indices), "f": lambda: 0}),
    }
    for name, (data, collate_fn) in failing.items():
        try:
            list(build_loader(data, collate_fn=collate_fn, **options))
        except Exception as error:
            batches[name] = f"{type(error).__name__}: {error}"
    return batches


class Broken(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 5:
            raise OSError("the disk is gone")
        return torch.tensor(index)


def main(library: str, scenario: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    api = importlib.import_module(library)
    results = {name: seen_in(api, name, case, folder) for name, case in CASES.items()}
    results["objects"] = objects_in(api, folder, concatenate=False)
    if library == "lightrainer":
        results["objects, joined"] = objects_in(api, folder, concatenate=True)
        results["sent"] = sent()
    (folder / f"{scenario}-rank{RANK}.json").write_text(json.dumps(results))
    leave_group(library)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
