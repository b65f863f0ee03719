"""Places in Lightning's loops, found from what other libraries write down, and written as
Lightning does itself.
"""

import math

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LearningRateFinder
from torch.utils.data import DataLoader, Dataset

from helpers.lightning.tiny_modules import make_trainer
from lightrainer.lightning_modules.internals import lightning_internals, loop_states
from lightrainer.lightning_modules.internals.loop_states import (
    current_loop_position,
    is_restored_by_finder,
    load_again,
    loop_position_of,
    loops_at,
    normalize_counters,
    place_from_state,
)


class Numbers(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Linear(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).mean()

    def validation_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Places(Callback):
    """Where the loops stand at the end of every batch and epoch, and what Lightning would save
    there.
    """

    def __init__(self):
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, trainer, module, *args):
        self.batches.append((current_loop_position(trainer)[:2], trainer.fit_loop.state_dict()))

    def on_train_epoch_end(self, trainer, module):
        self.epochs.append(current_loop_position(trainer)[:2])


@pytest.fixture
def fitted():
    places = Places()
    with lightning_internals.quiet():
        trainer = make_trainer(callbacks=[places], accumulate_grad_batches=2)
        trainer.fit(Linear(), DataLoader(Numbers(), batch_size=2), DataLoader(Numbers()))
    return places


def test_written_states_are_those_of_lightning(fitted):
    """In the middle of the second epoch, at the end of a step: all counters that stand in ours."""
    assert [loop_position for loop_position, _ in fitted.batches] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert fitted.epochs == [(1, 0), (2, 0)]
    loop_position, theirs = fitted.batches[4]
    assert loop_position == (1, 2)
    ours = loops_at(epoch=1, done=2, steps=3, batches=5)["fit_loop"]
    assert ours.keys() <= theirs.keys()
    # the loop of the validation, and states of loops that have none
    assert len(theirs.keys() - ours.keys()) == 4
    assert ours["epoch_progress"] == theirs["epoch_progress"]
    assert ours["epoch_loop.batch_progress"] == theirs["epoch_loop.batch_progress"]
    assert ours["epoch_loop.state_dict"] == theirs["epoch_loop.state_dict"]
    for name in (
        "epoch_loop.scheduler_progress",
        "epoch_loop.automatic_optimization.optim_progress",
    ):
        assert totals(ours[name]) == totals(theirs[name])


def totals(counters):
    """Return the counters over all epochs; those of the current epoch restart in each."""
    if "total" in counters:
        return counters["total"]
    return {name: totals(inner) for name, inner in counters.items()}


@pytest.mark.parametrize("batches", [1, 2, 5, 6, 7, 12])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_loop_state_position_from_steps_and_epochs(batches, accumulation):
    """As the Trainer API counts: `epoch` is a share of the batches, the last window of an epoch
    may be shorter.
    """
    each = math.ceil(batches / accumulation)
    for steps in range(1, 4 * each + 1):
        epoch, windows = divmod(steps, each)
        consumed = min(windows * accumulation, batches)
        state = {"global_step": steps, "epoch": epoch + consumed / batches, "max_steps": 4 * each}
        assert place_from_state(state, accumulation=accumulation) == (
            epoch,
            windows * accumulation,
        ), (steps, state)


def test_loop_state_position_in_a_stream():
    """Epochs are shares of `max_steps`; a stream that ended early started again."""
    assert place_from_state({"global_step": 4, "epoch": 0.4, "max_steps": 10}) == (0, 4)
    assert place_from_state({"global_step": 7, "epoch": 1.2, "max_steps": 10}) == (1, 2)
    assert place_from_state({"global_step": 0, "epoch": 0, "max_steps": 10}) == (0, 0)


def test_loop_state_restarts_reading():
    """Lightning's iterator is made before its hooks are called, and of a loader without a length
    it has read.
    """

    class Counting:
        def __init__(self):
            self.read = []

        def __iter__(self):
            for number in range(3):
                self.read.append(number)
                yield torch.tensor([float(number)])

    class Begins(Linear):
        def on_train_start(self):
            assert loader.read == [0]
            loop_states.restart_loaders(self.trainer)
            assert loader.read == [0, 0]

    loader = Counting()
    with lightning_internals.quiet():
        trainer = make_trainer(max_epochs=1, limit_val_batches=0)
        trainer.fit(Begins(), loader)
    assert loader.read == [0, 0, 1, 2]
    assert trainer.global_step == 3


class GoingOn(Linear):
    """Saves at a hook of the third batch, the last of the first epoch, and can resume there."""

    def __init__(self, hook, file):
        super().__init__()
        self.file, self.loop_position, self.seen = file, None, []
        setattr(self, hook, self.save)

    def save(self, *args):
        if self.trainer.global_step == 3:
            self.trainer.save_checkpoint(self.file)

    def on_load_checkpoint(self, checkpoint):
        fit_loop = checkpoint["loops"]["fit_loop"]
        self.loop_position = loop_position_of(fit_loop)
        normalize_counters(fit_loop, self.loop_position)

    def on_train_start(self):
        if self.loop_position is not None:
            loop_states.resume_inside_epoch(self.trainer, self.loop_position)

    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(batch_idx)

    def on_validation_start(self):
        self.seen.append("validates")

    def on_train_epoch_end(self):
        self.seen.append("ends")


@pytest.mark.parametrize(
    ("hook", "rest"),
    [
        ("on_train_batch_end", ["validates", "ends", 0, 1, 2, "validates", "ends"]),
        ("on_validation_end", ["ends", 0, 1, 2, "validates", "ends"]),
    ],
)
def test_loop_state_end_of_a_batch_runs_once(tmp_path, hook, rest):
    """Not at all, or once too often, if Lightning was left to guess it; at the end of an epoch
    too.
    """
    runs = []
    for start in (None, tmp_path / "saved.ckpt"):
        runs.append(GoingOn(hook, tmp_path / "saved.ckpt"))
        with lightning_internals.quiet():
            make_trainer().fit(
                runs[-1],
                DataLoader(Numbers(), batch_size=2),
                DataLoader(Numbers()),
                ckpt_path=start,
            )
    assert runs[1].seen == rest


def test_loop_state_end_of_a_batch_runs_after_a_validation(tmp_path):
    file = tmp_path / "saved.ckpt"
    trainer = make_trainer()
    for start in (None, file):
        module = GoingOn("on_train_batch_end", file)
        with lightning_internals.quiet():
            trainer.fit(
                module, DataLoader(Numbers(), batch_size=2), DataLoader(Numbers()), ckpt_path=start
            )
    assert module.seen[:2] == ["validates", "ends"]


def test_loaders_of_a_training_and_those_used_up():
    """The epoch ends when all are used up: here before its third batch, as the longer one is
    marked as used up.
    """
    states = []

    class Of(Linear):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["long"], batch_idx)

        def on_train_batch_end(self, *args):
            loaders = loop_states.train_loaders(self.trainer)
            states.append((len(loaders), loop_states.exhausted_loaders(self.trainer)))
            if len(states) == 1:
                loop_states.set_exhausted_loaders(self.trainer, [True, False])

    with lightning_internals.quiet():
        trainer = make_trainer(max_epochs=1, limit_val_batches=0)
        loaders = {
            "long": DataLoader(Numbers(), batch_size=2),
            "short": DataLoader(Numbers(), batch_size=3),
        }
        trainer.fit(Of(), loaders)
    assert states == [(2, [False, False]), (2, [True, False])]


def test_checkpoint_is_loaded_again_after_a_finder(tmp_path, monkeypatch):
    """The resumed training ends with the weights of an uninterrupted one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "first.ckpt"
    loader = DataLoader(Numbers(), batch_size=2)

    class Tuned(Linear):
        learning_rate = 0.1

    class Loading(Callback):
        def on_fit_start(self, trainer, module):
            assert is_restored_by_finder(trainer)
            load_again(trainer, path)

    with lightning_internals.quiet():
        first = make_trainer(max_epochs=1)
        first.fit(Tuned(), loader)
        first.save_checkpoint(path)
        callbacks = [LearningRateFinder(num_training_steps=3), Loading()]
        second = make_trainer(max_epochs=2, callbacks=callbacks)
        second.fit(module := Tuned(), loader, ckpt_path=path)
        whole = make_trainer(max_epochs=2)
        whole.fit(straight := Tuned(), loader)
    assert second.global_step == whole.global_step
    assert torch.equal(module.weight, straight.weight)
