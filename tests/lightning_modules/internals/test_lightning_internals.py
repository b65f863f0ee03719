"""Where a `fit` starts, and evaluations inside of it: Lightning's private names mean what we
take them for.
"""

import contextlib
import functools

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger

from helpers.lightning import plain_fit, tiny_modules
from lightrainer.lightning_modules.internals import fast_path, lightning_internals
from lightrainer.lightning_modules.training.accumulation import WindowLoader

make_trainer = functools.partial(tiny_modules.make_trainer, max_epochs=1, limit_val_batches=0)
WINDOWS = 4
"""Windows in an epoch of the tests' data."""


class Loader:
    """Batches in a list; a bare list would count as several loaders."""

    def __init__(self, *numbers):
        self.batches = [torch.tensor(number) for number in numbers]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def make_windows():
    """An epoch of four windows of one number each; epoch `e` gives 10 * e, 10 * e + 1, ..."""

    class Numbers:
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([torch.tensor(10.0 * self.epoch + index) for index in range(WINDOWS)])

    read = lambda batches, n: ([next(batches)], 1)
    return WindowLoader(
        Numbers(),
        accumulation=1,
        batches_per_epoch=WINDOWS,
        windows_per_epoch=WINDOWS,
        read_window=read,
    )


class Manual(fast_path.FastModule):
    """Takes one step a window by hand, and writes down where it stands."""

    def __init__(self, windows=None):
        super().__init__()
        self.automatic_optimization = False
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(1)))
        self.windows = windows
        self.seen = []
        self.at_end_of_step = lambda batch_idx: None
        self.evaluate_batch = lambda batch: None

    def training_step(self, batch, batch_idx):
        place = (self.current_epoch, batch_idx, self.global_step, self.trainer.fit_loop.batch_idx)
        self.seen.append((*place, float(batch[0])))
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward((self.weight * batch[0]).sum())
        optimizer.step()

    def validation_step(self, batch, batch_idx):
        return self.evaluate_batch(batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("taken", float(self.global_step))
        self.at_end_of_step(batch_idx)

    def on_train_epoch_start(self):
        self.seen.append(f"epoch {self.current_epoch} begins")

    def on_train_epoch_end(self):
        self.seen.append(
            f"epoch {self.current_epoch} ends at {self.trainer.fit_loop.epoch_loop.total_batch_idx}"
        )
        if self.windows is not None:
            self.windows.end_epoch()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(trainer, module, *val_loaders):
    val_dataloaders = [
        lightning_internals.combined(loader, training=False) for loader in val_loaders
    ]
    with lightning_internals.quiet():
        trainer.fit(
            module,
            lightning_internals.combined(module.windows, training=True),
            *(val_dataloaders or [[]]),
        )
    return module.seen


class Steps(Logger):
    """Keeps the step of every line that is logged."""

    name, version = "steps", 0

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_hyperparams(self, *args, **kwargs): ...

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, metrics["taken"]))


@pytest.mark.parametrize(("epoch", "window"), [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2), (2, 3)])
def test_start_at_resumes_exactly(epoch, window):
    """Epoch, batch and step counters, hooks, data, and the steps in the logs, to the end of
    three epochs.
    """
    runs = []
    for start in ((0, 0), (epoch, window)):
        logger, windows = Steps(), make_windows()
        trainer = make_trainer(max_epochs=3, logger=logger, log_every_n_steps=1)
        windows.start_at(*start)
        done = WINDOWS * start[0] + start[1]
        lightning_internals.start_at(trainer, epoch=start[0], window=start[1], global_step=done)
        runs.append((fit(trainer, Manual(windows)), logger.lines, trainer.fit_loop.state_dict()))
        assert (trainer.current_epoch, trainer.global_step) == (3, 3 * WINDOWS)
    (whole, lines, end), (resumed, last_lines, last_end) = runs
    assert resumed[0] == f"epoch {epoch} begins"
    assert resumed[1] == (epoch, window, WINDOWS * epoch + window, window, 10 * epoch + window)
    assert resumed[1:] == whole[-len(resumed) + 1 :]
    assert (
        len([entry for entry in resumed if isinstance(entry, tuple)])
        == 3 * WINDOWS - WINDOWS * epoch - window
    )
    assert last_lines == lines[WINDOWS * epoch + window :]
    assert last_lines
    for progress in ("epoch_progress", "epoch_loop.batch_progress"):
        assert last_end[progress] == end[progress]


class Hooks(Callback):
    """Writes down the validation hooks."""

    def __init__(self):
        self.seen = []

    def on_validation_start(self, trainer, module):
        self.seen.append(f"start, validating={trainer.validating}, grad={torch.is_grad_enabled()}")

    def on_validation_epoch_start(self, trainer, module):
        self.seen.append("epoch start")

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.seen.append(f"batch {batch_idx}")

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.seen.append(f"out {outputs}")

    def on_validation_epoch_end(self, trainer, module):
        self.seen.append("epoch end")

    def on_validation_end(self, trainer, module):
        self.seen.append("end")


EVALUATED = [
    "start, validating=True, grad=False",
    "epoch start",
    "batch 0",
    "out 5",
    "batch 1",
    "out 6",
    "epoch end",
]
EVALUATED += ["end"]


def place_of(trainer):
    """All that an evaluation must leave as it was."""
    loop = trainer.fit_loop.epoch_loop
    return {
        "loop": id(loop.val_loop),
        "stage": (trainer.state.fn, trainer.state.stage, trainer.training, trainer.validating),
        "active loop": id(trainer._active_loop),
        "gradients": torch.is_grad_enabled(),
        "batch": (
            loop.batch_idx,
            loop.total_batch_idx,
            loop.global_step,
            loop._batches_that_stepped,
        ),
        "progress": trainer.fit_loop.state_dict(),
        "limit": trainer.limit_val_batches,
        "first iteration": trainer._logger_connector._first_loop_iter,
        "results": id(trainer._results),
        "interval": (trainer.num_training_batches, trainer.val_check_batch),
    }


def reporting(module):
    """Record the evaluation batches of `module`."""

    def evaluate_batch(batch):
        module.seen_in_evaluation = (
            module.training,
            torch.is_inference_mode_enabled(),
            float(batch),
        )
        module.log("val_number", float(batch), batch_size=1)
        return int(batch)

    return evaluate_batch


@pytest.mark.parametrize("moment", [0, 2, WINDOWS - 1, "train_start", "epoch_end"])
def test_evaluation_inside_fit(moment):
    """Validation hooks run on the given data, and training continues as without an evaluation."""
    module, hooks = Manual(make_windows()), Hooks()
    trainer = make_trainer(max_epochs=2, callbacks=[hooks])
    module.evaluate_batch = reporting(module)
    plain = Manual(make_windows())
    plain_trainer = make_trainer(max_epochs=2)

    def evaluate():
        before = place_of(trainer)
        lightning_internals.evaluate_inside_fit(trainer, Loader(5, 6))
        assert place_of(trainer) == before
        assert module.training
        assert module.seen_in_evaluation == (False, False, 6.0)
        assert trainer.callback_metrics["val_number"] == 5.5

    if isinstance(moment, int):
        module.at_end_of_step = lambda batch_idx: evaluate() if batch_idx == moment else None
    else:
        hook = Callback()
        setattr(
            hook,
            f"on_{moment.replace('epoch', 'train_epoch')}",
            lambda trainer, module: evaluate(),
        )
        trainer.callbacks.append(hook)
    assert fit(trainer, module) == fit(plain_trainer, plain)
    assert hooks.seen == EVALUATED * (1 if moment == "train_start" else 2)
    assert torch.equal(module.weight, plain.weight)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_evaluation_leaves_the_fit_loop_as_it_was(error):
    """A callback may catch the error: training and the next evaluation continue."""
    module, hooks, plain = Manual(make_windows()), Hooks(), Manual(make_windows())
    trainer = make_trainer(callbacks=[hooks])

    def fail(batch):
        raise error("in the middle")

    def evaluate(batch_idx):
        module.evaluate_batch = fail if batch_idx < 2 else reporting(module)
        before = place_of(trainer)
        with pytest.raises(error, match="middle") if batch_idx < 2 else contextlib.nullcontext():
            lightning_internals.evaluate_inside_fit(trainer, Loader(5, 6))
        assert place_of(trainer) == before
        assert module.training

    module.at_end_of_step = evaluate
    assert fit(trainer, module) == fit(make_trainer(), plain)
    assert (
        hooks.seen
        == [
            "start, validating=True, grad=False",
            "epoch start",
            "batch 0",
        ]
        * 2
        + EVALUATED * 2
    )
    assert torch.equal(module.weight, plain.weight)


def test_failed_evaluation_lets_go_of_its_data():
    """At once, so that worker processes end, although the error that is being handled still
    knows the frames.
    """
    closed = []

    class Closing(Loader):
        def __iter__(self):
            try:
                yield from self.batches
            finally:
                closed.append(True)

    module, trainer = Manual(make_windows()), make_trainer()
    module.evaluate_batch = lambda batch: 1 / 0

    def evaluate(batch_idx):
        with pytest.raises(ZeroDivisionError) as error:
            lightning_internals.evaluate_inside_fit(trainer, Closing(5, 6))
        assert len(closed) == batch_idx + 1
        assert error.traceback

    module.at_end_of_step = evaluate
    fit(trainer, module)


class OfLoaders(plain_fit.Model):
    """Logs a number for each loader when an evaluation ends."""

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("seen", dataloader_idx)

    def on_test_epoch_end(self):
        for index in range(2):
            lightning_internals.log_of_loader(
                self, index, {f"end_{index}": 10.0 + index}, add_dataloader_idx=False
            )


def test_values_of_one_loader():
    trainer, data = plain_fit.make_trainer(), plain_fit.Loader()
    results = trainer.test(OfLoaders(), [data, data], verbose=False)
    expected = [
        {f"seen/dataloader_idx_{index}": index, f"end_{index}": 10 + index} for index in range(2)
    ]
    assert results == expected
    assert trainer.callback_metrics == expected[0] | expected[1]
    assert plain_fit.make_trainer().test(OfLoaders(), data, verbose=False) == [
        {"seen": 0, "end_0": 10, "end_1": 11}
    ]
