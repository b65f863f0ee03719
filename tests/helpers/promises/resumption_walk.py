"""Resume a training of plain Lightning from checkpoints of every place, with each of a table of
settings.
"""

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.tensor import DTensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from helpers.devices.cpu_strategies import DeepSpeedOnCPU, FSDPOnCPU
from helpers.lightning.resumed_modules import EveryHook
from helpers.lightning.tiny_modules import make_trainer
from lightrainer.lightning_modules import DataModule, LossModule, build_loader, set_seed
from lightrainer.lightning_modules.common.collectives import gather_objects
from lightrainer.lightning_modules.tasks.resuming import ResumingCallback

PROCESSES = int(os.environ.get("WORLD_SIZE", 1))
RANK = int(os.environ.get("RANK", 0))
"""Both as torchrun sets them: Lightning removes them after a run."""
EPOCHS = 4
BATCHES = 6
PLACES = {
    "in a batch": "before_optimizer_step",
    "in mid-epoch": "train_batch_end",
    "last batch": "train_batch_end",
    "in a validation": "validation_batch_end",
    "after a validation": "validation_end",
    "end of an epoch": "train_epoch_end",
    "start of an epoch": "train_epoch_start",
}
"""Column of the table -> the hook at which its checkpoints are written; Lightning's ModelCheckpoint
does so by default at the end of an epoch, or after a validation, and with `every_n_train_steps`
after a batch.
"""

ROWS = torch.randn(22, 4, generator=torch.Generator().manual_seed(0))


class Noisy(Dataset):
    """Draws a random number for each sample."""

    def __init__(self, count: int = len(ROWS)):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return ROWS[index] + 0.1 * torch.randn(4), ROWS[index].sum().reshape(1)


class Plain(Dataset):
    """The same without: Lightning saves no random generators of loaders that are not of this
    library.
    """

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index], ROWS[index].sum().reshape(1)


class Stream(IterableDataset):
    def __init__(self, count: int = len(ROWS)):
        self.items = Noisy(count)

    def __iter__(self):
        return (self.items[index] for index in range(len(self.items)))


class Model(nn.Module):
    """With a backbone, which callbacks freeze, and without dropout: a batch that was interrupted
    is trained again.
    """

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.backbone(x)))


def sum_of(batch: Any) -> float:
    """Return a number that tells batches apart."""
    if isinstance(batch, torch.Tensor):
        return float(batch.double().sum())
    parts = batch.values() if isinstance(batch, dict) else batch
    return sum(sum_of(part) for part in parts if part is not None)


class Ours(LossModule):
    """Records its batches; trains on the batches of several loaders at once."""

    def __init__(self, schedule: Any = None, **options: Any):
        optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05, "momentum": 0.9}}
        steps = {
            "class_path": "torch.optim.lr_scheduler.StepLR",
            "init_args": {"step_size": 1, "gamma": 0.7},
        }
        options = {"optimizer": optimizer, "schedule": schedule or steps, **options}
        super().__init__(Model(), loss_fn=nn.MSELoss(), **options)
        self.read: list[float] = []

    @property
    def backbone(self) -> nn.Module:
        """As `BackboneFinetuning` wants it."""
        return self.model.backbone

    def training_step(self, batch, batch_idx):
        self.read.append(sum_of(batch))
        return super().training_step(batch, batch_idx)

    def compute_loss(self, batch, items=None):
        if not isinstance(batch, dict):
            return super().compute_loss(batch, items)
        losses = [
            super(Ours, self).compute_loss(part)[0] for part in batch.values() if part is not None
        ]
        return sum(losses), None


class Own(LightningModule):
    """Of another author."""

    def __init__(self):
        super().__init__()
        self.model = Model()
        self.read: list[float] = []

    def training_step(self, batch, batch_idx):
        self.read.append(sum_of(batch))
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log(
            "val_loss", nn.functional.mse_loss(self.model(batch[0]), batch[1]) + torch.rand(())
        )

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class Record(Callback):
    """Learning rates of the batches, and results of the validations."""

    def __init__(self):
        self.rates: list[float] = []
        self.validations: list[tuple[int, float]] = []

    def on_train_batch_start(self, trainer, *args):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer, module):
        self.validations.append((trainer.global_step, float(trainer.callback_metrics["val_loss"])))


def loader(count: int = len(ROWS), **options: Any) -> Any:
    return build_loader(
        Noisy(count), batch_size=4, sampler=RandomSampler(Noisy(count)), seed=3, **options
    )


def stream_loader(count: int = len(ROWS)) -> Any:
    return build_loader(Stream(count), batch_size=4)


def stateful_loader(**options: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Plain(), batch_size=4, **(options or {"shuffle": True}))


def stateful_loader_of_rank() -> Any:
    return stateful_loader(sampler=DistributedSampler(Plain(), PROCESSES, RANK))


def data_module(**options: Any) -> DataModule:
    return DataModule(Noisy(), Noisy(6), batch_size=4, **options)


def plateau(monitor: str, interval: str | None = None) -> Callable[[], LossModule]:
    schedule = {
        "class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "init_args": {"patience": 0, "mode": "max", "threshold": 10.0, "factor": 0.8},
    }
    return partial(Ours, schedule, monitor=monitor, schedule_interval=interval)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of the table: a training, by default of a LossModule with a schedule that changes in
    each epoch.

    Attributes:
        module: makes the module.
        data: makes the data module, or the training loaders.
        callbacks: makes the callbacks.
        options: of the Trainer; what is callable is called for each training.
        processes: how many train.
    """

    module: Callable[[], LightningModule] = Ours
    data: Callable[[], Any] = data_module
    callbacks: Callable[[], list[Callback]] = list
    options: dict[str, Any] = field(default_factory=dict)
    processes: int = 1


def with_callback(make: Callable[[], Callback]) -> Setting:
    return Setting(callbacks=lambda: [make()])


def in_two_processes(
    make: Callable[[], Any],
    *,
    module: Callable[[], LightningModule] = Ours,
    data: Callable[[], Any] = data_module,
    **options: Any,
) -> Setting:
    """Return a setting of a strategy, which each training creates again, and of other options of
    the Trainer.
    """
    return Setting(
        module=module, data=data, options={"strategy": make, "devices": 2, **options}, processes=2
    )


SETTINGS: dict[str, Setting] = {
    "`StepLR`": Setting(),
    "`linear`": Setting(module=lambda: Ours({"name": "linear"})),
    "`ReduceLROnPlateau` on `val_loss`": Setting(module=plateau("val_loss")),
    "`ReduceLROnPlateau` by step": Setting(module=plateau("train_loss", "step")),
    '`precision="64-true"`': Setting(options={"precision": "64-true"}),
    '`precision="bf16-mixed"`': Setting(options={"precision": "bf16-mixed"}),
    '`precision="bf16-true"`': Setting(options={"precision": "bf16-true"}),
    "`MixedPrecision` with a scaler": Setting(
        options={"plugins": lambda: [MixedPrecision("16-mixed", "cpu")]}
    ),
    "`accumulate_grad_batches=4`": Setting(options={"accumulate_grad_batches": 4}),
    "`val_check_interval=2`": Setting(options={"val_check_interval": 2}),
    "`limit_train_batches=4`": Setting(options={"limit_train_batches": 4}),
    "`max_steps`": Setting(options={"max_steps": 22, "max_epochs": -1}),
    "a stream": Setting(data=lambda: DataModule(Stream(), Noisy(6), batch_size=4)),
    "a worker": Setting(data=lambda: data_module(num_workers=1)),
    "`build_loader`, another author's module": Setting(module=Own, data=loader),
    "a dict of `build_loader`": Setting(data=lambda: {"a": loader(), "b": loader(9)}),
    "a dict of streams": Setting(data=lambda: {"a": stream_loader(), "b": stream_loader(9)}),
    "a dict of equally long streams": Setting(
        data=lambda: {"a": stream_loader(), "b": stream_loader()}
    ),
    "streams in `min_size`": Setting(
        data=lambda: CombinedLoader({"a": stream_loader(), "b": stream_loader(9)}, "min_size")
    ),
    "a stream and a longer dataset in `min_size`": Setting(
        data=lambda: CombinedLoader({"a": stream_loader(9), "b": loader()}, "min_size")
    ),
    "`StatefulDataLoader` of torchdata": Setting(
        module=lambda: Ours({"name": "linear"}), data=stateful_loader
    ),
    "`DataLoader` of torch": Setting(data=lambda: DataLoader(Plain(), batch_size=4, shuffle=True)),
    "`EarlyStopping`": with_callback(lambda: EarlyStopping("val_loss", patience=9)),
    "`GradientAccumulationScheduler`": with_callback(
        lambda: GradientAccumulationScheduler({0: 2, 2: 3})
    ),
    "`Timer`": with_callback(lambda: Timer("00:01:00:00")),
    "`EMAWeightAveraging`": with_callback(lambda: EMAWeightAveraging(decay=0.9)),
    "`WeightAveraging`": with_callback(WeightAveraging),
    "`StochasticWeightAveraging`": with_callback(
        lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=EPOCHS)
    ),
    "`BackboneFinetuning`": with_callback(
        lambda: BackboneFinetuning(unfreeze_backbone_at_epoch=2, lambda_func=lambda epoch: 1.5)
    ),
    "`ModelPruning`": with_callback(
        lambda: ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=False)
    ),
    '`strategy="ddp"`': in_two_processes(lambda: "ddp"),
    "FSDP": in_two_processes(lambda: FSDPOnCPU(state_dict_type="sharded")),
    "FSDP, one file": in_two_processes(lambda: FSDPOnCPU(state_dict_type="full")),
    "`ModelParallelStrategy`": in_two_processes(lambda: ModelParallelStrategy(2, 1)),
    "`ModelParallelStrategy`, one file": in_two_processes(
        lambda: ModelParallelStrategy(2, 1, save_distributed_checkpoint=False)
    ),
    "DeepSpeed ZeRO 2": in_two_processes(
        lambda: DeepSpeedOnCPU(stage=2, zero_allow_untested_optimizer=True)
    ),
    "`bf16-mixed`, accumulation and `EMAWeightAveraging`": Setting(
        callbacks=lambda: [EMAWeightAveraging(decay=0.9)],
        options={"precision": "bf16-mixed", "accumulate_grad_batches": 4},
    ),
    "`64-true`, `ReduceLROnPlateau` and `EarlyStopping`": Setting(
        module=plateau("val_loss"),
        callbacks=lambda: [EarlyStopping("val_loss", patience=9)],
        options={"precision": "64-true"},
    ),
    "`ddp` and `StatefulDataLoader`": in_two_processes(lambda: "ddp", data=stateful_loader),
    "`ddp` and `StatefulDataLoader` with a `DistributedSampler`": in_two_processes(
        lambda: "ddp", data=stateful_loader_of_rank, use_distributed_sampler=False
    ),
    "`ddp` and `ReduceLROnPlateau` by step": in_two_processes(
        lambda: "ddp", module=plateau("train_loss", "step")
    ),
    "FSDP and `accumulate_grad_batches=4`": in_two_processes(
        lambda: FSDPOnCPU(state_dict_type="sharded"), accumulate_grad_batches=4
    ),
    "DeepSpeed ZeRO 2 and `accumulate_grad_batches=4`": in_two_processes(
        lambda: DeepSpeedOnCPU(stage=2, zero_allow_untested_optimizer=True),
        accumulate_grad_batches=4,
    ),
    "`ddp`, a stream and `ReduceLROnPlateau`": in_two_processes(
        lambda: "ddp",
        module=plateau("val_loss"),
        data=lambda: DataModule(Stream(), Noisy(6), batch_size=4),
    ),
}
"""Row of the table -> what is trained. All but those of two processes run on one device."""


class Heard(logging.Handler):
    """Collects warnings of this library about a checkpoint that is loaded."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@dataclass
class Training:
    """A training that has ended, or what of it was left to do."""

    module: Any
    record: Record
    steps: int
    was_warned: bool
    error: BaseException | None
    """Why it could not be resumed."""

    def is_end_of(self, whole: "Training") -> bool:
        """Return whether everything is as in the uninterrupted training."""
        if self.error is not None:
            return False
        pairs = (
            (self.module.read, whole.module.read),
            (self.record.rates, whole.record.rates),
            (self.record.validations, whole.record.validations),
        )
        is_same = all(
            actual == expected[len(expected) - len(actual) :] for actual, expected in pairs
        )
        return is_same and self.steps == whole.steps and same_values(self.module, whole.module)


def values_of(module: LightningModule) -> list[torch.Tensor]:
    """Return the parameters and buffers, of sharded ones the part of this process."""
    values = [*module.parameters(), *module.buffers()]
    return [value.to_local() if isinstance(value, DTensor) else value for value in values]


def same_values(left: LightningModule, right: LightningModule) -> bool:
    return all(
        torch.equal(actual, expected)
        for actual, expected in zip(values_of(left), values_of(right), strict=True)
    )


def fitted(setting: Setting, callbacks: list[Callback], ckpt_path: Path | None = None) -> Training:
    """Train, from the start or from a checkpoint."""
    torch.manual_seed(1)
    module: Any = setting.module()
    record = Record()
    options = {
        name: value() if callable(value) else value for name, value in setting.options.items()
    }
    all_callbacks = [record, *setting.callbacks(), *callbacks, ResumingCallback()]
    data = setting.data()
    trainer = make_trainer(callbacks=all_callbacks, **{"max_epochs": EPOCHS, **options})
    loaders = {"datamodule": data}
    if not isinstance(data, DataModule):
        loaders = {
            "train_dataloaders": data,
            "val_dataloaders": build_loader(Noisy(6), batch_size=4),
        }

    set_seed(7 + trainer.global_rank)
    if ckpt_path is not None:
        torch.rand(11)  # the random numbers of another process
    heard = Heard()
    logger = logging.getLogger("lightrainer")
    logger.addHandler(heard)
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, ckpt_path=ckpt_path, **loaders)
        except (Exception, CheckpointException) as raised:
            if ckpt_path is None:
                raise
            error = raised
    logger.removeHandler(heard)
    of_lightning = [
        str(warning.message)
        for warning in caught
        if "dataloader is not resumable" in str(warning.message)
    ]
    return Training(
        module, record, trainer.global_step, bool(heard.messages or of_lightning), error
    )


FIRST = "000 in a batch.ckpt"
"""Written before the first step."""


@dataclass
class Verdict:
    """What resuming from the checkpoints of a place gave.

    Attributes:
        exact: how many gave what the uninterrupted training did.
        warned: how many others were warned of.
        refused: those that could not be loaded, which was reported.
        silent: those that differ without a warning.
    """

    exact: int = 0
    warned: int = 0
    refused: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.silent:
            return "differs silently"
        if self.warned:
            return "warns"
        if self.refused == [FIRST]:
            return "error before step 1"
        return "error" if self.refused else "exact"


class Saving(EveryHook):
    """Saves at the hooks of the places, and says which place it is; the start of the first epoch
    is none.
    """

    def __init__(self, folder: Path):
        super().__init__(folder, sorted(set(PLACES.values())))

    def save(self, hook, trainer, *others, **named):
        is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        place = next(name for name, at in PLACES.items() if at == hook)
        if hook == "train_batch_end" and is_last:
            place = "last batch"
        # nothing is left to do
        is_whole = hook == "train_epoch_end" and trainer.current_epoch == EPOCHS - 1
        is_untrained = hook == "train_epoch_start" and trainer.global_step == 0
        if not is_whole and not is_untrained:
            trainer.save_checkpoint(self.folder / f"{next(self.count):03} {place}.ckpt")


def walk(setting: Setting, folder: Path) -> dict[str, Verdict]:
    """Return the verdict for each place, of all processes together."""
    whole = fitted(setting, [Saving(folder)])
    verdicts = {place: Verdict() for place in PLACES}
    for file in sorted(folder.glob("*.ckpt")):
        verdict = verdicts[file.stem.split(" ", 1)[1]]
        resumed = fitted(setting, [], file)
        if all(gather_objects(resumed.is_end_of(whole))):
            verdict.exact += 1
        elif not any(gather_objects(resumed.was_warned)):
            verdict.silent.append(file.name)
        elif resumed.error is not None:
            verdict.refused.append(file.name)
        else:
            verdict.warned += 1
    return verdicts


def table_row(name: str, found: dict[str, Verdict]) -> str:
    """Return the line of the table."""
    return f"| {name} | " + " | ".join(str(verdict) for verdict in found.values()) + " |"
