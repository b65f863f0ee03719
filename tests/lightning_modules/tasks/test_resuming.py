"""Training resumes bit for bit from each of its checkpoints, whatever wrote it and at whichever
hook.
"""

import datetime
import itertools
import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from torch.utils.data import IterableDataset

from helpers.lightning.resumed_modules import (
    ITEMS,
    Counting,
    Events,
    EveryHook,
    Following,
    LateDraws,
    Noisy,
    Plain,
    Shuffled,
    Sized,
    Stream,
)
from helpers.lightning.tiny_modules import Net, make_trainer, points, same_weights, seeded
from lightrainer.lightning_modules import (
    DataModule,
    LossModule,
    SequenceClassificationModule,
    set_seed,
)
from lightrainer.lightning_modules.internals.loop_states import METRICS

pytestmark = pytest.mark.filterwarnings(
    "ignore:Your `IterableDataset` has `__len__`", "ignore:The dirpath has changed"
)


def ours():
    return LossModule(
        seeded(Net, dropout=0.3), optimizer={"learning_rate": 0.05}, schedule={"name": "linear"}
    )


def fitted(
    data, module, callbacks, ckpt_path=None, val=None, workers=None, collates=None, **options
):
    events = Events()
    collate_fn = None if collates is None else collates()
    val = points(10, seed=9) if val is None else val
    val = val() if callable(val) else val
    datamodule = DataModule(data(), val, collate_fn=collate_fn, batch_size=8, **(workers or {}))
    options["enable_checkpointing"] = any(
        isinstance(callback, ModelCheckpoint) for callback in callbacks
    )
    trainer = make_trainer(callbacks=[events, *callbacks], **options)
    set_seed(7)
    if ckpt_path is not None:
        torch.rand(11)
    trainer.fit(module, datamodule, ckpt_path=ckpt_path)
    return module, events, trainer


def differences(folder, callbacks, data=Noisy, module=Plain, **options):
    """Resume from all checkpoints; return what of each differs from the training that was not
    interrupted.
    """
    whole, events, trainer = fitted(data, module(), callbacks(folder), **options)
    mismatches, files = {}, sorted(folder.glob("*.ckpt"))
    for file in files:
        counters = torch.load(file)["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = counters["total"]["processed"]
        resumed, resumed_events, other = fitted(data, module(), [], file, **options)
        if not same_weights(whole, resumed):
            mismatches[file.name, "weights"] = [
                len(events.batches) - done,
                len(resumed_events.batches),
            ]
        if other.global_step != trainer.global_step:
            mismatches[file.name, "steps"] = other.global_step
        if resumed_events.rates != events.rates[done:]:
            mismatches[file.name, "rates"] = resumed_events.rates
        if (
            resumed_events.validations
            != events.validations[len(events.validations) - len(resumed_events.validations) :]
        ):
            mismatches[file.name, "validations"] = resumed_events.validations
        if not all(map(torch.equal, resumed_events.batches, events.batches[done:])):
            mismatches[file.name, "batches"] = len(resumed_events.batches)
    return mismatches, len(files)


WRITTEN = {
    "val_check_interval=0.25": (12, {"monitor": "val_0"}, {"val_check_interval": 0.25}),
    "val_check_interval=2": (6, {"monitor": "val_0"}, {"val_check_interval": 2}),
    "validated across epochs": (
        3,
        {"monitor": "val_0"},
        {"val_check_interval": 4, "check_val_every_n_epoch": None},
    ),
    "check_val_every_n_epoch=2": (
        1,
        {"monitor": "val_0"},
        {"check_val_every_n_epoch": 2, "max_epochs": 3},
    ),
    "every_n_train_steps=1": (12, {"every_n_train_steps": 1}, {"num_sanity_val_steps": 2}),
    "without validation": (12, {"every_n_train_steps": 1}, {"limit_val_batches": 0}),
    "at the end of training epochs": (
        2,
        {"save_on_train_epoch_end": True},
        {"val_check_interval": 2},
    ),
    "save_last": (3, {"save_last": True, "every_n_epochs": 1}, {}),
    "train_time_interval": (12, {"train_time_interval": datetime.timedelta(0)}, {}),
    "accumulation": (4, {"every_n_train_steps": 1}, {"accumulate_grad_batches": 4}),
    "in the middle of steps": (
        4,
        {"monitor": "val_0"},
        {"accumulate_grad_batches": 2, "val_check_interval": 3},
    ),
    "max_steps": (
        5,
        {"every_n_train_steps": 2},
        {"max_steps": 11, "max_epochs": -1, "val_check_interval": 2},
    ),
    "limit_train_batches": (
        8,
        {"every_n_train_steps": 1},
        {"limit_train_batches": 4, "val_check_interval": 2},
    ),
    "reload_dataloaders": (
        12,
        {"every_n_train_steps": 1},
        {"reload_dataloaders_every_n_epochs": 1},
    ),
    "overfit_batches": (6, {"every_n_train_steps": 1}, {"overfit_batches": 3}),
}


class TestEveryCheckpoint:
    @pytest.mark.parametrize(
        ("case", "data"),
        [
            *((case, Noisy) for case in WRITTEN),
            *itertools.product(
                ("val_check_interval=2", "every_n_train_steps=1", "in the middle of steps"),
                (Stream, Sized),
            ),
        ],
    )
    def test_resuming_lightning_callbacks(self, tmp_path, case, data):
        """Weights, steps, the order of the data and what is drawn for it, learning rates,
        validations.

        Of data without a length Lightning has read a batch more than it used.
        """
        count, saving, options = WRITTEN[case]
        callbacks = lambda folder: [
            ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **saving)
        ]
        assert differences(tmp_path, callbacks, data, **options) == ({}, count)

    @pytest.mark.parametrize("options", [{"val_check_interval": 4}, {"accumulate_grad_batches": 4}])
    @pytest.mark.parametrize(("module", "data"), [(ours, Noisy), (Plain, Stream)])
    def test_at_every_hook(self, tmp_path, module, data, options):
        """With two validation sets, and in the middle of them."""
        val = {"near": points(10, seed=9), "far": points(5, seed=8)}
        mismatches, count = differences(
            tmp_path, lambda folder: [EveryHook(folder)], data, module, val=val, **options
        )
        assert (mismatches, count) == ({}, 12 + 2 * 2 + 1 + 2 * 6)

    @pytest.mark.parametrize("module", [Following, lambda: Following("step")])
    def test_schedules_that_follow_a_metric(self, tmp_path, module):
        """They are stepped after the checkpoint is written, by a metric that was logged before."""
        assert differences(tmp_path, lambda folder: [EveryHook(folder)], module=module)[0] == {}

    def test_at_the_start_of_an_epoch_with_max_steps(self, tmp_path):
        """Lightning takes any training with `max_steps` for one inside of an epoch, and steps no
        plateau schedule at the end of the first one.
        """
        saving = lambda folder: [
            ModelCheckpoint(folder, filename="{step}", save_top_k=-1, save_on_train_epoch_end=True)
        ]
        limits = {"max_steps": 22, "max_epochs": -1}
        assert differences(tmp_path, saving, module=Following, **limits)[0] == {}

    def test_resuming_data_of_a_persistent_worker(self, tmp_path, caplog):
        """Its generators resume too; with validation, whose workers start again, a warning is
        logged.
        """
        saving = lambda folder: [
            ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=4)
        ]
        workers = {"num_workers": 1, "persistent_workers": True}
        assert differences(tmp_path, saving, Stream, workers=workers, limit_val_batches=0) == (
            {},
            3,
        )
        assert "persistent_workers" not in caplog.text
        fitted(Stream, Plain(), [], tmp_path / "step=8.ckpt", workers=workers)
        assert (
            "persistent_workers=True: the resumed training may draw other random numbers"
            in caplog.text
        )

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_resuming_dataset_collator_and_sampler_states(self, tmp_path, num_workers):
        """Attributes `generator`, one of them made late, and a `state_dict`; in the process and
        in workers.
        """
        saving = lambda folder: [
            ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=4)
        ]
        reading = {"num_workers": num_workers, "sampler": Shuffled}
        options = {"limit_val_batches": 0, "collates": LateDraws}
        assert differences(tmp_path, saving, Counting, workers=reading, **options) == ({}, 3)

    def test_resuming_modules_with_generators(self, tmp_path):
        """Saved in mid-epoch, and in a validation that draws from them."""

        class Drawing(Plain):
            def __init__(self):
                super().__init__()
                self.draws = random.Random(1)
                self.net.noise = np.random.default_rng(1)

            def training_step(self, batch, batch_idx):
                x = batch["x"] + self.draws.random() + float(self.net.noise.normal())
                return super().training_step({**batch, "x": x}, batch_idx)

            def validation_step(self, batch, batch_idx, dataloader_idx=0):
                x = batch["x"] + self.draws.random()
                return super().validation_step({**batch, "x": x}, batch_idx, dataloader_idx)

        saving = lambda folder: [EveryHook(folder, ["train_batch_end", "validation_batch_end"])]
        mismatches, count = differences(tmp_path, saving, module=Drawing, val_check_interval=2)
        assert mismatches == {}
        assert count > 6

    def test_that_was_written_by_a_resumed_training(self, tmp_path):
        saving = lambda folder: [
            ModelCheckpoint(folder, filename="{step}", save_top_k=-1, monitor="val_0")
        ]
        options = {"val_check_interval": 3, "accumulate_grad_batches": 2, "max_epochs": 3}
        whole = fitted(Noisy, Plain(), saving(tmp_path), **options)[0]
        for step in (1, 3):
            file = tmp_path / f"step={step}.ckpt"
            for later in (4, 6, 7):
                folder = tmp_path / f"{step} to {later}"
                fitted(Noisy, Plain(), saving(folder), file, **options)
                file = folder / f"step={later}.ckpt"
            assert same_weights(whole, fitted(Noisy, Plain(), [], file, **options)[0])

    @pytest.mark.parametrize(
        ("hook", "options"),
        [
            ("validation_batch_end", {}),
            ("train_epoch_end", {"check_val_every_n_epoch": 2, "max_epochs": 4}),
        ],
    )
    def test_resuming_validation_data_with_generators(self, tmp_path, hook, options):
        """Also from inside a validation, which is repeated."""
        callbacks = lambda folder: [EveryHook(folder, (hook,))]
        mismatches, count = differences(tmp_path, callbacks, val=Noisy, **options)
        assert mismatches == {}
        assert count >= 4

    @pytest.mark.parametrize("options", [{"max_steps": 8}, {"max_epochs": 1}])
    def test_resuming_a_training_that_becomes_longer(self, tmp_path, options):
        """Its end may lie in the middle of an epoch, which is then trained to its end."""
        whole = fitted(Noisy, Plain(), [])[0]
        for hook in ("train_epoch_end", "train_end"):
            fitted(Noisy, Plain(), [EveryHook(tmp_path / hook)], **options)
            resumed, _, other = fitted(
                Noisy, Plain(), [], max((tmp_path / hook).glob(f"*{hook}.ckpt"))
            )
            assert same_weights(whole, resumed)
            assert (other.global_step, other.current_epoch) == (12, 2)


class Interrupting(Callback):
    """Raises on the `left`-th call of its hook and then saves, as `OnExceptionCheckpoint` does."""

    def __init__(self, file, hook, left):
        self.file, self.left = file, left
        setattr(self, hook, self.count)

    def count(self, *args):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("interrupted")

    def on_exception(self, trainer, module, exception):
        trainer.save_checkpoint(self.file)


class Drawless(Plain):
    def __init__(self):
        super().__init__()
        self.net = seeded(Net)


class QuietStream(IterableDataset):
    def __iter__(self):
        return iter(ITEMS)


@pytest.mark.parametrize(
    ("hook", "count", "data", "module"),
    [
        ("on_train_batch_start", 9, lambda: ITEMS, Drawless),
        ("on_train_batch_start", 7, QuietStream, Drawless),
        ("on_before_optimizer_step", 6, lambda: ITEMS, Drawless),
        ("on_before_optimizer_step", 9, QuietStream, Drawless),
        ("on_validation_batch_end", 5, Noisy, Plain),
        ("on_validation_batch_end", 2, Stream, Plain),
    ],
)
def test_interruption_trains_the_batch_in_work_again(tmp_path, hook, count, data, module):
    """The batch in work is trained again, and no other; that is exact if nothing is drawn. So is
    a validation.
    """
    file = tmp_path / "interrupted.ckpt"
    whole, events, _ = fitted(data, module(), [], val_check_interval=3)
    with pytest.raises(RuntimeError, match="interrupted"):
        fitted(data, module(), [Interrupting(file, hook, count)], val_check_interval=3)
    done = torch.load(file)["global_step"]
    resumed, resumed_events, _ = fitted(data, module(), [], file, val_check_interval=3)
    assert done == (count - 1 if "validation" not in hook else 3 * -(-count // 2))
    assert len(resumed_events.batches) == 12 - done
    assert all(map(torch.equal, resumed_events.batches, events.batches[done:]))
    assert same_weights(whole, resumed)


def count_rows(logits, labels):
    return len(labels)


@pytest.mark.parametrize(
    "finder",
    [
        lambda: LearningRateFinder(num_training_steps=20),
        lambda: BatchSizeFinder(max_trials=1, steps_per_trial=1),
    ],
)
def test_resuming_after_a_finder_has_restored_its_own_checkpoint(tmp_path, monkeypatch, finder):
    """Lightning would train from the first step, with the weights of the checkpoint."""
    # Finders write their files here.
    monkeypatch.chdir(tmp_path)
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=5)
    whole, events, trainer = fitted(Noisy, ours(), [finder(), saving])
    resumed, rest, other = fitted(Noisy, ours(), [finder()], tmp_path / "step=5.ckpt")
    assert rest.rates == events.rates[5:]
    assert (len(rest.batches), other.global_step) == (trainer.global_step - 5, trainer.global_step)
    assert same_weights(whole, resumed)


def test_train_metrics_cover_the_rest_of_a_resumed_epoch(tmp_path):
    """Lightning begins no epoch there, and in one whose last batch is trained nothing is left."""
    data = DataModule(points(32), batch_size=8)
    module = LossModule(seeded(Net), metrics={"rows": count_rows}, train_metrics=True)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    make_trainer(max_epochs=1, callbacks=[saving], enable_checkpointing=True).fit(module, data)
    rows = {}
    for step in (1, 3, 4):
        trainer = make_trainer(max_epochs=1)
        trainer.fit(module, data, ckpt_path=tmp_path / f"step={step}.ckpt")
        rows[step] = trainer.callback_metrics.get("train_rows")
    assert rows == {1: 24, 3: 8, 4: None}


def test_usual_train_metrics_are_logged_in_a_resumed_epoch(tmp_path):
    """They are made when the model exists, also where no epoch begins."""
    data = DataModule(points(32), points(8, seed=9), batch_size=8)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    for file in (None, tmp_path / "step=1.ckpt"):
        module = SequenceClassificationModule(seeded(Net), num_labels=3, train_metrics=True)
        trainer = make_trainer(
            max_epochs=1, val_check_interval=2, callbacks=[saving], enable_checkpointing=True
        )
        trainer.fit(module, data, ckpt_path=file)
        assert "train_accuracy" in trainer.callback_metrics


def test_train_metrics_of_an_interrupted_epoch_are_not_counted_twice(tmp_path):
    """The same module is trained again."""
    file = tmp_path / "interrupted.ckpt"
    data = DataModule(points(32), batch_size=8)
    module = LossModule(seeded(Net), metrics={"rows": count_rows}, train_metrics=True)
    interrupting = Interrupting(file, "on_train_batch_start", 3)
    with pytest.raises(RuntimeError, match="interrupted"):
        make_trainer(max_epochs=1, callbacks=[interrupting]).fit(module, data)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, data, ckpt_path=file)
    assert trainer.callback_metrics["train_rows"] == 16


class MetricsAtStart(Callback):
    """Records the metrics with which the first epoch of each fit begins."""

    def __init__(self):
        self.recorded = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.recorded.append("val_loss" in trainer.callback_metrics)


def test_resumption_without_metrics_forgets_those_of_an_earlier_fit(tmp_path):
    trainer = make_trainer(max_epochs=1)
    data = DataModule(points(), points(10))
    trainer.fit(ours(), data)
    trainer.save_checkpoint(tmp_path / "with.ckpt")
    checkpoint = torch.load(tmp_path / "with.ckpt")
    del checkpoint[METRICS]
    torch.save(checkpoint, tmp_path / "without.ckpt")

    observer = MetricsAtStart()
    resumed = make_trainer(max_epochs=2, callbacks=[observer])
    resumed.fit(ours(), data, ckpt_path=tmp_path / "with.ckpt")
    resumed.fit(ours(), data, ckpt_path=tmp_path / "without.ckpt")
    assert observer.recorded == [True, False]
