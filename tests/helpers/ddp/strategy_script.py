"""`LossModule` and `DataModule` under strategies of Lightning that share out a model or its data;
for `torchrun`.

torchrun --nproc_per_node=2 strategy_script.py OUTPUT_FOLDER WAY...

Every rank writes what it saw of each way to `OUTPUT_FOLDER/WAY-rank<rank>.json`. With the variable
BESIDE DeepSpeed is taken from that folder.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "BESIDE" in os.environ:
    sys.path.append(os.environ["BESIDE"])  # last: only what is missing is taken there
    os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import IterableDataset, TensorDataset

from helpers.ddp.module_runs import make_trainer
from helpers.devices.cpu_strategies import DeepSpeedOnCPU, FSDPOnCPU
from lightrainer.lightning_modules import DataModule, LossModule, set_seed
from lightrainer.lightning_modules.internals import lightning_internals

# Lightning removes them after a run
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COUNT = 24
NUMBERS = torch.arange(float(COUNT)).reshape(COUNT, 1)
ROWS = torch.cat(
    [NUMBERS / COUNT, torch.randn(COUNT, 3, generator=torch.Generator().manual_seed(0))], dim=1
)
PAIRS = TensorDataset(ROWS, ROWS.sum(1, keepdim=True))
EVALUATED = TensorDataset(*PAIRS[:22])
"""Fills no round of several processes."""


class SplitModule(LossModule):
    """Splits its layers over processes, as users of tensor parallelism do."""

    def configure_model(self):
        if self.model is None:
            self.model = self.model_source()
            plan = {"0": ColwiseParallel(), "3": RowwiseParallel()}
            parallelize_module(self.model, self.device_mesh["tensor_parallel"], plan)
        super().configure_model()


class OwnLossModule(LossModule):
    """Logs the loss of this process; `train_loss` is that of all."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("own_loss", loss)
        return loss


class Stream(IterableDataset):
    def __iter__(self):
        return iter(EVALUATED)


def deepspeed(stage: int) -> Any:
    return DeepSpeedOnCPU(stage=stage, zero_allow_untested_optimizer=True)


WAYS: dict[str, Callable[[], Any]] = {
    "alone": lambda: "auto",
    "alone, large batches": lambda: "auto",
    "ddp": lambda: "ddp",
    "fsdp": lambda: FSDPOnCPU(state_dict_type="sharded"),
    "sharded": lambda: ModelParallelStrategy(2, 1),
    "sharded, one file": lambda: ModelParallelStrategy(2, 1, save_distributed_checkpoint=False),
    "split": lambda: ModelParallelStrategy(1, 2),
    "split, one file": lambda: ModelParallelStrategy(1, 2, save_distributed_checkpoint=False),
    "both": lambda: ModelParallelStrategy(2, 2),
    **{f"zero {stage}": functools.partial(deepspeed, stage) for stage in (1, 2, 3)},
}


def network(dropout: float) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))


def count(predictions: torch.Tensor, labels: torch.Tensor) -> float:
    return float(len(labels))


BY_LOSS: Any = {
    "schedule": {"name": "reduce_lr_on_plateau", "kwargs": {"patience": 0, "factor": 0.5}},
    "schedule_interval": "step",
    "monitor": "own_loss",
}
"""Halves the rate after each step whose loss is not less than that before."""


def make_module(way: str, dropout: float, schedule: dict[str, Any]) -> LossModule:
    kind = LossModule
    if way.startswith(("split", "both")):
        kind = SplitModule
    elif schedule is BY_LOSS:
        kind = OwnLossModule
    return kind(
        functools.partial(network, dropout),
        loss_fn=nn.MSELoss(),
        optimizer={"learning_rate": 0.05},
        metrics={"count": count},
        **schedule,
    )


def fit(
    way: str,
    *,
    share: int = 4,
    dropout: float = 0.0,
    schedule: dict[str, Any] | None = None,
    resume: Path | None = None,
    **options: Any,
) -> Any:
    """Train three epochs; `share` samples in each process and batch."""
    module = make_module(way, dropout, schedule or {"schedule": {"name": "linear"}})
    clipping = None if way == "fsdp" else 0.5  # Lightning's FSDP cannot
    settings = {"devices": RANKS, "max_epochs": 3, "gradient_clip_val": clipping, **options}
    trainer = make_trainer(strategy=WAYS[way](), **settings)
    set_seed(42 if type(module) is SplitModule else 42 + trainer.global_rank)
    if resume is not None:
        torch.rand(7)  # its generators are to be those of the checkpoint
    data = DataModule(PAIRS, {"sized": EVALUATED, "stream": Stream()}, batch_size=share)
    with lightning_internals.quiet():
        trainer.fit(module, data, ckpt_path=resume)
    return trainer


def result(trainer: Any) -> list[float]:
    """Return the number of steps, what was measured in the validation, and the weights that this
    process can see.
    """
    measured = [
        float(value)
        for name, value in sorted(trainer.callback_metrics.items())
        if name.startswith("val")
    ]
    parameters = list(trainer.lightning_module.model.parameters())
    if isinstance(trainer.strategy, DeepSpeedOnCPU):
        import deepspeed

        is_divided = trainer.strategy.config["zero_optimization"]["stage"] == 3
        with deepspeed.zero.GatheredParameters(parameters, enabled=is_divided):
            weights = [parameter.detach().clone() for parameter in parameters]
    else:
        weights = [
            getattr(parameter, "full_tensor", lambda p=parameter: p)().detach()
            for parameter in parameters
        ]
    return [
        trainer.global_step,
        *measured,
        *torch.cat([weight.flatten() for weight in weights]).tolist(),
    ]


def numbers_in(loader: Any) -> list[list[int]]:
    return [(batch[0][:, 0] * COUNT).round().int().tolist() for batch in loader]


def resumed(way: str, folder: Path) -> dict[str, Any]:
    """Train with a checkpoint after the second step, in the middle of an epoch, and one after
    the first epoch.
    """
    names = {"save_top_k": -1, "auto_insert_metric_name": False}
    saving = [
        ModelCheckpoint(folder, filename="step-{step}", every_n_train_steps=2, **names),
        ModelCheckpoint(folder, filename="epoch-{epoch}", **names),
    ]
    options = {"dropout": 0.2}
    whole = result(fit(way, callbacks=saving, enable_checkpointing=True, **options))
    files = [folder / "step-2.ckpt", folder / "epoch-0.ckpt"]
    return {
        "whole": whole,
        "resumed": {file.stem: result(fit(way, resume=file, **options)) for file in files},
    }


def seen(way: str) -> dict[str, Any]:
    """Return the batches of this process, and the result of a training without dropout."""
    trainer = fit(way, share=8 if way == "alone, large batches" else 4)
    data = trainer.datamodule
    data.train_dataset = Stream()
    batches = {"stream": numbers_in(data.train_dataloader())}
    batches["validation"] = numbers_in(data.val_dataloader()["sized"])
    data.train_dataset = PAIRS
    batches["training"] = numbers_in(data.train_dataloader())
    counts = {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if name.endswith("count")
    }
    return {"batches": batches, "counts": counts, "result": result(trainer)}


def refused() -> str:
    """Train a model without a split under the sizes that Lightning chooses; return the error."""
    WAYS["by default"] = ModelParallelStrategy
    try:
        fit("by default")
    except ValueError as error:
        return str(error)
    return "nothing"


class SaveBeforeStep(Callback):
    """Saves in the first batch, when there are gradients and no states of the optimizer."""

    def __init__(self, file: Path):
        self.file = file

    def on_before_optimizer_step(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 0:
            trainer.save_checkpoint(self.file)


def reported_without_states(folder: Path) -> dict[str, list[str]]:
    """Return what is logged where a checkpoint without optimizer states, and one with them, is
    resumed from.
    """
    logged: dict[str, list[str]] = {}
    handler = logging.Handler(logging.ERROR)
    logging.getLogger("lightrainer").addHandler(handler)
    for way in ("fsdp", "sharded", "sharded, one file"):
        before, after = folder / f"{way}-before.ckpt", folder / f"{way}-after.ckpt"
        fit(way, max_epochs=1, callbacks=[SaveBeforeStep(before)]).save_checkpoint(after)
        for file in (before, after):
            messages = logged[file.stem] = []
            handler.emit = lambda record, messages=messages: messages.append(record.getMessage())
            with contextlib.suppress(Exception, CheckpointException):
                fit(way, max_epochs=1, resume=file)
                messages.append("resumed")
    return logged


def followed_loss() -> dict[str, Any]:
    """Train with a schedule that follows the loss of each step, which differs between processes."""
    trainer = fit("ddp", schedule=BY_LOSS)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return {
        "rate": rate,
        "loss": float(trainer.callback_metrics["own_loss"]),
        "result": result(trainer),
    }


def main() -> None:
    folder, ways = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    for way in ways:
        record: Any
        if way == "refused":
            record = refused()
        elif way == "by loss":
            record = followed_loss()
        elif way == "without states":
            record = reported_without_states(folder)
        else:
            record = {**seen(way), **resumed(way, folder / way)}
        (folder / f"{way}-rank{RANK}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
