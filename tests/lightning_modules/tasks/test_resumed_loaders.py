"""A training of any module resumes from checkpoints of every hook, whatever its loaders are, bit
for bit.
"""

import sys
from importlib.metadata import entry_points

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from helpers.lightning.resumed_modules import Events, EveryHook, Following, Noisy, Plain, Stream
from helpers.lightning.tiny_modules import Net, make_trainer, points, same_weights, seeded
from lightrainer.lightning_modules import DataModule, LossModule, build_loader, set_seed
from lightrainer.lightning_modules.tasks.resuming import ResumingCallback

pytestmark = pytest.mark.filterwarnings(
    "ignore:The dirpath has changed",
    "ignore:'set_vital' is deprecated:UserWarning",  # torchdata calls it
)


class Few(Noisy):
    """Two batches, so that a longer loader beside it goes through it several times."""

    def __len__(self):
        return 16


class FewStream(Stream):
    def __init__(self):
        super().__init__(Few())


class OfSeveral(Plain):
    """Trains on the batches of several loaders at once and records their sums."""

    def __init__(self):
        super().__init__()
        self.read = []

    def training_step(self, batch, batch_idx):
        batches = batch.values() if isinstance(batch, dict) else batch
        batches = [part for part in batches if part is not None]
        self.read.append([part["x"].sum().item() for part in batches])
        return sum(self.net(**part)["loss"] for part in batches)


class OfOne(Following):
    """The same for a single loader, with a learning rate that falls in each epoch."""

    def __init__(self):
        super().__init__()
        self.read = []

    def training_step(self, batch, batch_idx):
        self.read.append([batch["x"].sum().item()])
        return super().training_step(batch, batch_idx)


class Record(Events):
    """Records the learning rates and the validations; the modules record the batches."""

    def on_train_batch_end(self, *args):
        pass


def loader_of(dataset, **options):
    sampler = None if isinstance(dataset, Stream) else RandomSampler(dataset)
    return build_loader(dataset, batch_size=8, sampler=sampler, seed=3, **options)


class ByMethod(OfOne):
    def train_dataloader(self):
        return loader_of(Noisy())


class TwoOfDataModule(DataModule):
    def train_dataloader(self):
        return [super().train_dataloader(), loader_of(Few())]


LOADERS = {
    "one": (OfOne, lambda: loader_of(Noisy())),
    "of a method": (ByMethod, lambda: None),
    "a stream": (OfOne, lambda: loader_of(Stream())),
    "a dict": (OfSeveral, lambda: {"a": loader_of(Noisy()), "b": loader_of(Few())}),
    "a list": (OfSeveral, lambda: [loader_of(Few()), loader_of(Noisy())]),
    "a dict of streams": (
        OfSeveral,
        lambda: {"a": loader_of(Stream()), "b": loader_of(FewStream())},
    ),
    "a stream and a dataset": (
        OfSeveral,
        lambda: {"a": loader_of(Stream()), "b": loader_of(Few())},
    ),
    "min_size": (
        OfSeveral,
        lambda: CombinedLoader([loader_of(Noisy()), loader_of(Few())], "min_size"),
    ),
    "max_size": (
        OfSeveral,
        lambda: CombinedLoader([loader_of(Noisy()), loader_of(Few())], "max_size"),
    ),
    "max_size of streams": (
        OfSeveral,
        lambda: CombinedLoader([loader_of(Stream()), loader_of(FewStream())], "max_size"),
    ),
    "a DataModule": (OfSeveral, lambda: TwoOfDataModule(Noisy(), points(10), batch_size=8)),
}


def fitted(module, data, callbacks, ckpt_path=None, **options):
    options["enable_checkpointing"] = any(
        isinstance(callback, ModelCheckpoint) for callback in callbacks
    )
    events = Record()
    trainer = make_trainer(
        callbacks=[events, *callbacks, ResumingCallback()], **{"max_epochs": 3, **options}
    )
    set_seed(7)
    if ckpt_path is not None:
        torch.rand(11)
    if isinstance(data, DataModule):
        trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    else:
        val = build_loader(points(10, seed=9), batch_size=8)
        trainer.fit(module, data, val, ckpt_path=ckpt_path)
    return module, events, trainer


def differences(folder, make_module, make_data, callbacks, **options):
    """Resume from all checkpoints; return what of each differs from the training that was not
    interrupted.
    """
    whole, events, trainer = fitted(make_module(), make_data(), callbacks, **options)
    mismatches = {}
    files = sorted(folder.glob("*.ckpt"))
    for file in files:
        resumed, resumed_events, other = fitted(make_module(), make_data(), [], file, **options)
        same = {
            "steps": other.global_step == trainer.global_step,
            "batches": resumed.read == whole.read[len(whole.read) - len(resumed.read) :],
            "rates": resumed_events.rates
            == events.rates[len(events.rates) - len(resumed_events.rates) :],
            "validations": (
                resumed_events.validations
                == events.validations[len(events.validations) - len(resumed_events.validations) :]
            ),
            "weights": same_weights(whole, resumed),
        }
        if not all(same.values()):
            mismatches[file.name] = [name for name, is_same in same.items() if not is_same]
    return mismatches, len(files)


@pytest.mark.parametrize("kind", LOADERS)
def test_resumed_loaders_after_every_batch(tmp_path, kind):
    """Over three epochs: with max_size_cycle the shorter loader is in its last, first and middle
    batch.
    """
    make_module, make_data = LOADERS[kind]
    saving = EveryHook(tmp_path, ("train_batch_end", "validation_end", "train_epoch_end"))
    mismatches, count = differences(tmp_path, make_module, make_data, [saving], limit_val_batches=1)
    assert (mismatches, count) == ({}, 3 * (4 if kind == "min_size" else 8))


class Accumulating(OfOne):
    """Accumulates gradients by itself, for two optimizers; a step may cross epochs."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.second = seeded(Net)

    def training_step(self, batch, batch_idx):
        self.read.append([batch["x"].sum().item()])
        first, second = self.optimizers()
        self.manual_backward(self.net(**batch)["loss"])
        if self.trainer.fit_loop.total_batch_idx % 2 == 1:
            first.step()
            first.zero_grad()

        loss = self.second(**batch)["loss"]
        self.manual_backward(loss)
        if self.trainer.fit_loop.total_batch_idx % 4 == 3:
            second.step()
            second.zero_grad()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        networks = (self.net, self.second)
        return [torch.optim.SGD(network.parameters(), lr=0.1) for network in networks]


class PlainBackward(Accumulating):
    """Calls the backward pass of torch."""

    def manual_backward(self, loss):
        loss.backward()


class MostlyFrozen(Accumulating):
    """Trains only the last layer of one network."""

    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)
        self.second.layers[-1].requires_grad_(True)


@pytest.mark.parametrize(
    ("make_module", "kind", "options"),
    [
        (Accumulating, "one", {}),
        (Accumulating, "a stream", {}),
        (Accumulating, "one", {"precision": "bf16-mixed"}),
        (PlainBackward, "one", {}),
        (MostlyFrozen, "one", {}),
    ],
    ids=["", "stream", "bf16", "plain backward", "frozen weights"],
)
def test_resumed_loaders_of_a_module_that_accumulates(tmp_path, make_module, kind, options):
    saving = EveryHook(tmp_path, ("train_batch_end", "train_epoch_end"))
    make_data = LOADERS[kind][1]
    mismatches, count = differences(tmp_path, make_module, make_data, [saving], **options)
    assert (mismatches, count) == ({}, 21)


@pytest.mark.parametrize("kind", ["one", "of a method"])
def test_resumed_loaders_in_double_precision(tmp_path, kind):
    """Lightning would round the weights of a module that is not of this library."""
    make_module, make_data = LOADERS[kind]
    saving = EveryHook(tmp_path, ("train_batch_end", "train_epoch_end"))
    mismatches, count = differences(tmp_path, make_module, make_data, [saving], precision="64-true")
    assert (mismatches, count) == ({}, 21)


@pytest.mark.parametrize("kind", ["one", "a stream", "a dict"])
def test_resumed_loaders_in_the_middle_of_a_batch(tmp_path, kind):
    """The data draws random numbers, the model does not: the batch is read again with the same
    ones.
    """
    make_class, make_data = LOADERS[kind]

    def make_module():
        module = make_class()
        module.net.layers[2].p = 0.0
        return module

    saving = EveryHook(tmp_path, ["before_optimizer_step"])
    mismatches, count = differences(tmp_path, make_module, make_data, [saving], limit_val_batches=0)
    assert (mismatches, count) == ({}, 3 * 6)


@pytest.mark.parametrize(("kind", "warned"), [("one", False), ("a stream", True)])
def test_resumed_loaders_that_are_reloaded(tmp_path, caplog, kind, warned):
    """Lightning begins a stream twice when it reloads it, so other random numbers are drawn."""
    make_module, make_data = LOADERS[kind]
    saving = EveryHook(tmp_path, ["train_epoch_end"])
    options = {"reload_dataloaders_every_n_epochs": 1}
    mismatches, _ = differences(tmp_path, make_module, make_data, [saving], **options)
    assert bool(mismatches) == warned
    assert ("reload_dataloaders_every_n_epochs=1" in caplog.text) == warned


@pytest.mark.parametrize(
    "saving", [{}, {"every_n_train_steps": 1}, {"monitor": "val_loss"}, {"save_last": True}]
)
def test_resumed_schedules_that_follow_a_metric(tmp_path, saving):
    """Lightning's own checkpoints, by default those before the schedule's step; a rate that
    changes in each epoch.
    """
    plateau = {
        "class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "init_args": {"patience": 0, "mode": "max"},
    }

    class Module(LossModule):
        def __init__(self):
            torch.manual_seed(1)
            optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
            super().__init__(
                torch.nn.Linear(4, 1),
                loss_fn=torch.nn.MSELoss(),
                optimizer=optimizer,
                schedule=plateau,
            )
            self.read = []

    rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(rows, rows.sum(1, keepdim=True))
    saved = ModelCheckpoint(tmp_path, filename="{epoch}-{step}", save_top_k=-1, **saving)
    mismatches, count = differences(
        tmp_path, Module, lambda: DataModule(rows, rows, batch_size=8), [saved], max_epochs=5
    )
    assert mismatches == {}
    assert count >= 4


class Still(IterableDataset):
    """A stream that draws no random numbers."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(points(self.count))


@pytest.mark.parametrize("kind", ["one", "a dict"])
def test_short_streams_end_an_epoch_as_without_a_limit(kind):
    """With the last accumulated batches, the schedule of the epoch and its validation."""

    def trained(**options):
        module, data = OfOne(), build_loader(Still(46), batch_size=8)
        if kind == "a dict":
            module, data = OfSeveral(), {"a": data, "b": build_loader(Still(20), batch_size=8)}
        # Without a limit Lightning reads one batch ahead, so random numbers come in another order.
        module.net.layers[2].p = 0.0
        _, events, trainer = fitted(module, data, [], accumulate_grad_batches=4, **options)
        validated = [steps for _, steps, *_ in events.validations]
        return module, (trainer.global_step, events.rates, validated)

    module, actual = trained(limit_train_batches=50)
    expected_module, expected = trained()
    assert actual == expected
    assert (actual[0], actual[2]) == (6, [2, 4, 6])
    assert same_weights(module, expected_module)


@pytest.mark.parametrize("kind", ["training", "training of a dict", "validation"])
def test_resumed_streams_that_are_shorter_than_a_limit(tmp_path, kind):
    make_module, make_data = LOADERS["a stream" if kind == "training" else "a dict of streams"]
    options = {"limit_train_batches": 50, "accumulate_grad_batches": 4}
    if kind == "validation":
        make_module, options = OfOne, {"limit_val_batches": 50}

        def make_data():
            return DataModule(Noisy(), Stream(), batch_size=8)

    saving = EveryHook(tmp_path, ("train_batch_end", "validation_end", "train_epoch_end"))
    mismatches, count = differences(tmp_path, make_module, make_data, [saving], **options)
    assert (mismatches, count) == ({}, 3 * 8)


@pytest.mark.parametrize("is_order_of_epoch", [False, True])
def test_resumed_stateful_loader(tmp_path, is_order_of_epoch):
    """Of torchdata, beside a schedule that asks for the length of the training: Lightning alone
    reads other batches.
    """
    stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

    class Module(LossModule):
        def __init__(self):
            torch.manual_seed(1)
            super().__init__(
                torch.nn.Linear(4, 1), loss_fn=torch.nn.MSELoss(), schedule={"name": "linear"}
            )
            self.read = []

        def training_step(self, batch, batch_idx):
            self.read.append(batch[0].sum().item())
            return super().training_step(batch, batch_idx)

    rows = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(rows, rows.sum(1, keepdim=True))
    saved = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)

    def make_data():
        order = {"shuffle": True}
        if is_order_of_epoch:
            order = {"sampler": DistributedSampler(rows, num_replicas=1, rank=0)}
        return stateful_dataloader.StatefulDataLoader(rows, batch_size=8, **order)

    mismatches, count = differences(tmp_path, Module, make_data, [saved], limit_val_batches=0)
    assert (mismatches, count) == ({}, 9)


class InOrder(LossModule):
    """Records which batch of an unshuffled epoch it gets."""

    def __init__(self):
        super().__init__(seeded(Net))
        self.read = []

    def training_step(self, batch, batch_idx):
        first = batch.get("a", batch)
        self.read.append(int(first.pop("index")[0]) // 8)
        return self.model(**first)["loss"]


class Stateful(DataLoader):
    """A loader of another library, which has a state."""

    def state_dict(self):
        return {"loads": 0}

    def load_state_dict(self, state):
        raise AssertionError("a state that may be of another loader")


@pytest.mark.parametrize(
    ("make_loader", "first_batch"),
    [
        (lambda data: build_loader(data, batch_size=8), 2),
        (lambda data: Stateful(data, batch_size=8), 0),
    ],
    ids=["own", "stateful"],
)
def test_resumed_with_another_number_of_loaders(tmp_path, caplog, make_loader, first_batch):
    """No state is that of a loader now: loaders of this library skip what was trained, others
    begin again.
    """
    data = [{**row, "index": torch.tensor(index)} for index, row in enumerate(points(32))]
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fitted(InOrder(), make_loader(data), [saved], max_epochs=1)
    loaders = {"a": make_loader(data), "b": make_loader(data)}
    resumed, _, trainer = fitted(InOrder(), loaders, [], tmp_path / "step=2.ckpt", max_epochs=1)
    assert "Resume with the same loaders" in caplog.text
    assert resumed.read == [first_batch, first_batch + 1]
    assert trainer.global_step == 4


class Reading(Plain):
    """Records every sample."""

    def __init__(self):
        super().__init__()
        self.read = []

    def training_step(self, batch, batch_idx):
        self.read += batch["x"].tolist()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("batch_size", "warned"), [(8, False), (4, False), (6, False), (10, True)])
def test_resumed_with_another_batch_size(tmp_path, caplog, batch_size, warned):
    """After 24 of 46 samples: every other one once, where they are a number of whole batches."""
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    first = fitted(Reading(), DataModule(points(46), batch_size=8), [saved])[0]
    file = tmp_path / "step=3.ckpt"
    resumed, _, trainer = fitted(Reading(), DataModule(points(46), batch_size=batch_size), [], file)

    is_exact = sorted(first.read[:24] + resumed.read[: 46 - 24]) == sorted(first.read[:46])
    assert is_exact is not warned
    assert ("another batch size" in caplog.text) is warned
    if not warned:
        later = len(range(0, 46, batch_size)) * 2
        assert trainer.global_step == 3 + len(range(24, 46, batch_size)) + later


class Positioned(IterableDataset):
    """A stream with a state: it continues where it was left."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        items = points(46)
        while self.position < len(items):
            self.position += 1
            yield items[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_stream_with_another_batch_size(tmp_path, caplog, workers):
    """Every other sample once, although Lightning has begun to read before; batches of several
    workers alternate.
    """

    def data(batch_size):
        return DataModule(Positioned(), batch_size=batch_size, num_workers=workers)

    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    first = fitted(Reading(), data(8), [saved])[0]
    resumed = fitted(Reading(), data(4), [], tmp_path / "step=3.ckpt")[0]
    assert ("another batch size" in caplog.text) == (workers > 1)
    if workers == 0:
        assert resumed.read[: 46 - 24] == first.read[24:46]


def test_resuming_callback_of_every_trainer(monkeypatch):
    """By the entry point, where a loader can have been made; other scripts of the environment
    are left alone.
    """
    entries = [
        entry
        for entry in entry_points(group="lightning.pytorch.callbacks_factory")
        if entry.name == "lightrainer"
    ]
    callbacks = entries[0].load()
    assert [type(callback) for callback in callbacks()] == [ResumingCallback]
    monkeypatch.delitem(sys.modules, build_loader.__module__)
    assert callbacks() == []


def test_resuming_callback_added_twice(tmp_path):
    """The user may add one, too."""
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    whole = fitted(OfOne(), loader_of(Noisy()), [saving, ResumingCallback()])[0]
    resumed = fitted(OfOne(), loader_of(Noisy()), [ResumingCallback()], tmp_path / "step=8.ckpt")[0]
    assert same_weights(whole, resumed)


def test_resuming_callback_leaves_others_alone(tmp_path):
    """A module and a loader of the user's own: nothing is added to checkpoints."""
    module, _, trainer = fitted(OfOne(), DataLoader(points(16), batch_size=8), [])
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    assert not [
        name for name in torch.load(tmp_path / "own.ckpt") if name.startswith("lightrainer")
    ]
    assert module.trainer is trainer


def test_resuming_callback_keeps_files_of_weights_readable(tmp_path):
    """With a module of the user's own, as with those of this library."""
    saving = ModelCheckpoint(tmp_path, filename="weights", save_weights_only=True)
    fitted(OfOne(), loader_of(Noisy()), [saving], max_epochs=1)
    assert "state_dict" in torch.load(tmp_path / "weights.ckpt", weights_only=True)
