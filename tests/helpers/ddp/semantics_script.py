"""Trainings of two and four ranks, forked, so that everything is imported once.

    python semantics_script.py OUTPUT_FOLDER

Each process writes what it saw to a file `WHAT LOCAL LIBRARY-rank<rank>.json`, or
`rank<rank>.json`, in a folder there.
"""

import contextlib
import io
import json
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
import torch.distributed as dist

# before there is a group, see facade/distributed/process_group.py
import torch.distributed.nn.functional
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, get_worker_info

import lightrainer
import lightrainer.facade.trainer.lightning_trainer  # not again in each process
import lightrainer.facade.trainer.trainer_module
from helpers.ddp.train_script import Tokens, tokens
from helpers.processes.forking import forked
from helpers.processes.rank_training import QUIET
from lightrainer.lightning_modules.internals import lightning_import  # noqa: F401 - nor this

STREAMS = [(1, 0, False), (3, 0, False), (3, 0, None), (4, 2, False), (4, 2, None), (4, 0, True)]
"""Files, workers of each process, and `dispatch_batches`."""
OF_DDP = ("find_unused_parameters", "broadcast_buffers", "bucket_bytes_cap")
LEVELS = [{}, {"log_level": "error"}, {"log_level": "debug", "log_level_replica": "critical"}]
EACH = [
    {"log_on_each_node": log, "save_on_each_node": save}
    for log in (True, False)
    for save in (True, False)
]

for api in (lightrainer, transformers):
    api.Trainer, api.TrainingArguments  # noqa: B018 - imported when they are first accessed


class Seeing(nn.Module):
    """Notes which samples it saw, and their noise; normalises over the batch, and may leave out
    one of its layers.
    """

    def __init__(self, unused: bool = False, normed: bool = False):
        super().__init__()
        torch.manual_seed(7)
        self.norm = nn.BatchNorm1d(8) if normed else nn.Identity()
        self.inner = nn.Linear(8, 3)
        if unused:
            self.idle = nn.Linear(8, 3)
        self.seen: list[Any] = []

    def forward(self, x, labels, index):
        self.seen.append([index.tolist(), float(x.double().sum())])
        return {"loss": functional.cross_entropy(self.inner(self.norm(x)), labels)}


def sample(index: int) -> dict[str, Any]:
    x = torch.randn(8, generator=torch.Generator().manual_seed(index))
    return {"x": x.tolist(), "labels": int(x[:3].argmax()), "index": index}


def read(shards: list[int]) -> Any:
    return (
        sample(100 * shard + number)
        for shard in shards
        for number in range(24 // len(shards) + shard)
    )


class Stream(IterableDataset):
    """Shares its samples out to the workers of a process, as torch's documentation has it."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (sample(index) for index in range(first, 40, step))


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        key: torch.stack([torch.as_tensor(row[key]) for row in samples])
        for key in ("x", "labels", "index")
    }


def arguments(api: Any, folder: Path, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "learning_rate": 0.1,
        **QUIET,
    }
    options |= {
        "save_strategy": "no",
        "ddp_timeout": 55,
        "logging_steps": 1,
        "remove_unused_columns": False,
    }
    return api.TrainingArguments(str(folder / api.__name__), **{**options, **changes})


def trained(api: Any, folder: Path, data: Any, model: Any = None, **changes: Any) -> dict[str, Any]:
    model = model or Seeing()
    wrapped: dict[str, Any] = {}

    class Look(api.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            wrapped.update({name: getattr(trainer.model_wrapped, name) for name in OF_DDP})

    args = arguments(api, folder, **changes)
    trainer = api.Trainer(
        model, args, train_dataset=data, data_collator=collate, callbacks=[Look()]
    )
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        trainer.train()
    return {
        "seen": getattr(model, "seen", None),
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "weights": {
            name: tensor.double().sum().item() for name, tensor in model.state_dict().items()
        },
        "wrapped": wrapped,
        "printed": stdout.getvalue().count("'loss'"),
    }


def streams(api: Any, folder: Path) -> dict[str, Any]:
    results = {}
    for shards, workers, dispatch in STREAMS:
        data = datasets.IterableDataset.from_generator(
            read, gen_kwargs={"shards": list(range(shards))}
        )
        changes = {
            "dataloader_num_workers": workers,
            "accelerator_config": {"dispatch_batches": dispatch},
        }
        results[f"{shards} files, {workers} workers, {dispatch}"] = trained(
            api, folder, data, **changes
        )
    for dispatch in (False, None):
        changes = {
            "dataloader_num_workers": 2,
            "accelerator_config": {"dispatch_batches": dispatch},
        }
        results[f"torch, {dispatch}"] = trained(api, folder, Stream(), **changes)
    return results


class Showing(Tokens):
    """Always the same without dropout, and gives back its logits, too."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Identity()

    def forward(self, input_ids, labels=None, index=None, **kwargs):
        output = super().forward(input_ids, labels, index, **kwargs)
        return {**output, "logits": self.head(self.embedding(input_ids))}


class Gpt(transformers.GPT2LMHeadModel):
    def forward(self, x, labels, index):
        return super().forward(
            input_ids=index.view(-1, 1).expand(-1, 4), labels=index.view(-1, 1).expand(-1, 4)
        )


def of_ddp(api: Any, folder: Path) -> dict[str, Any]:
    """Return the options of DistributedDataParallel, and their effect."""
    data = [sample(index) for index in range(24)]
    results = {
        "unused": trained(
            api,
            folder,
            data,
            Seeing(unused=True),
            ddp_find_unused_parameters=True,
            ddp_bucket_cap_mb=3,
        ),
        "by default": trained(api, folder, data, Seeing(unused=True)),
        "buffers": trained(api, folder, data, Seeing(normed=True)),
        "own buffers": trained(api, folder, data, Seeing(normed=True), ddp_broadcast_buffers=False),
    }
    sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    for name, changes in (("pretrained", {}), ("checkpointed", {"gradient_checkpointing": True})):
        results[name] = trained(api, folder, data, Gpt(transformers.GPT2Config(**sizes)), **changes)
    return results


def of_place(api: Any, folder: Path) -> dict[str, Any]:
    """Return what follows from the place of a process: logging, its level, and saving."""
    arguments(api, folder)
    results: dict[str, Any] = {
        "timeout": (
            dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        ),
        "backend": dist.get_backend(),
        "levels": [],
        "each": [],
    }
    for level in LEVELS:
        for each in EACH:
            args = arguments(api, folder, **level, **each)
            results["levels"].append(args.get_process_log_level())
            results["each"].append([args.should_log, args.should_save])
    for save in (True, False):
        # A separate disk for each machine.
        place = (
            folder
            / f"saved {save} by {os.environ['RANK'] if os.environ['LOCAL_WORLD_SIZE'] == '1' else 'both'}"
        )
        data = [sample(index) for index in range(24)]
        options = {"save_strategy": "steps", "save_steps": 2, "save_on_each_node": save}
        results[f"saving {save}"] = trained(api, place, data, **options, log_on_each_node=save)
        files = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
        # Each process writes its own state in any case. The last three are of lightrainer alone;
        # the lock is that of process 0, which may still be in train().
        of_process = ("rng_state", "data_state", "manifest", ".training.lock")
        results[f"files {save}"] = sorted(
            str(Path(*f.parts[1:])) for f in files if not f.name.startswith(of_process)
        )
    return results


def pair(what: Any, library: str, folder: Path, local: int) -> None:
    warnings.filterwarnings("ignore")
    if local == 1:
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    name = f"{what.__name__} {local} {library}-rank{os.environ['RANK']}.json"
    (folder / name).write_text(json.dumps(what(sys.modules[library], folder)))


def whole(folder: Path, processes: int) -> None:
    """Train and evaluate; the batch of a step is that of any number of processes."""
    warnings.filterwarnings("ignore")
    events = []
    # All tokens have labels: a round of an evaluation is weighed by its tokens, as in the
    # reference.
    labelled = [{**row, "labels": row["input_ids"]} for row in tokens(13, 11)]

    class Events(lightrainer.TrainerCallback):
        pass

    for name in (
        "train_begin",
        "epoch_begin",
        "step_end",
        "substep_end",
        "log",
        "evaluate",
        "save",
        "train_end",
    ):
        setattr(
            Events,
            f"on_{name}",
            lambda self, args, state, control, name=name, **_: events.append(name),
        )
    model = Showing()
    torch.manual_seed(7)
    for tensor in model.parameters():
        nn.init.normal_(tensor, std=0.5)
    options: dict[str, Any] = {
        "per_device_train_batch_size": 4 // processes,
        "gradient_accumulation_steps": 3,
    }
    options |= {"per_device_eval_batch_size": 1, "num_train_epochs": 2, "max_steps": -1}
    options |= {
        "learning_rate": 0.3,
        "max_grad_norm": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "cosine",
    }
    options |= {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    options |= {
        "load_best_model_at_end": True,
        "metric_for_best_model": "seen",
        "greater_is_better": False,
    }
    trainer = lightrainer.Trainer(
        model,
        arguments(lightrainer, folder, **options),
        train_dataset=tokens(44, 1),  # of 11 rounds: windows of 3, 3, 3 and 2
        eval_dataset=labelled,
        compute_metrics=lambda given: {"seen": abs(trainer.state.global_step - 4)},  # 4 is best
        callbacks=[Events()],
    )
    trainer.train()
    trainer.save_model(str(folder / "model"))
    record = {
        "history": trainer.state.log_history,
        "best": Path(trainer.state.best_model_checkpoint or "").name,
        "weights": {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()},
        "events": events,
    }
    (folder / f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(record))


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    cases = [
        (scenario, library, 2)
        for scenario in (streams, of_ddp, of_place)
        for library in ("transformers", "lightrainer")
    ]
    cases += [(of_place, library, 1) for library in ("transformers", "lightrainer")]
    jobs: list[tuple[Any, int]] = []
    for scenario, library, local in cases:
        place = folder / f"{scenario.__name__} {library} {local}"
        place.mkdir()
        jobs.append((partial(pair, scenario, library, place, local), 2))
    for processes in (1, 4):
        place = folder / str(processes)
        place.mkdir()
        jobs.append((partial(whole, place, processes), processes))
    for action, processes in jobs:
        ended = forked(action, processes, log=folder / "log.txt")
        if any(ended.codes):
            sys.exit(f"{action}: {ended.codes}\n{ended.said[-5000:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
