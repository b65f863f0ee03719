"""The fast evaluation loop behaves as Lightning's."""

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop

from lightrainer.lightning_modules.internals import fast_path, lightning_internals


class Loader:
    def __init__(self, *batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Noting(fast_path.FastModule):
    """Notes in which state of things it is called."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Dropout()
        self.seen = []

    def note(self, step, batch, batch_idx):
        trainer = self.trainer
        progress = trainer._evaluation_loop.batch_progress
        modes = (self.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        stage = (trainer.state.fn, trainer.state.stage, trainer.validating, trainer.testing)
        self.seen.append((step, batch, batch_idx, modes, stage, progress.current.started, progress.is_last_batch))

    def validation_step(self, batch, batch_idx):
        self.note("validation", batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.note("test", batch, batch_idx)


def evaluated(stage, light, callbacks=(), profiler=None):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        accelerator="cpu",
        enable_model_summary=False,
        inference_mode=False,
        callbacks=list(callbacks),
        plugins=[fast_path.FastPrecision()],
        **quiet,
    )
    if light:
        fast_path.step_lightly(trainer)
    trainer.profiler = profiler or trainer.profiler
    module = Noting()
    getattr(trainer, stage)(module, lightning_internals.combined(Loader(5, 6, 7), training=False), verbose=False)
    loop = getattr(trainer, f"{stage}_loop")
    return module.seen, loop.batch_progress.state_dict(), loop._has_run, loop._seen_batches_per_dataloader


@pytest.fixture
def whole_steps(monkeypatch):
    """The calls of Lightning's own work on a batch."""
    calls, usual = [], _EvaluationLoop._evaluation_step
    monkeypatch.setattr(_EvaluationLoop, "_evaluation_step", lambda *args: (calls.append(args[1]), usual(*args)))
    return calls


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_a_module_alone_sees_what_it_always_sees(stage, whole_steps):
    expected = evaluated(stage, light=False)
    assert len(expected[0]) == len(whole_steps) == 3
    assert evaluated(stage, light=True) == expected
    assert len(whole_steps) == 3, "Lightning's own step was not taken"


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_a_callback_gets_all_of_it(stage, whole_steps):
    hooks = []

    class Watching(Callback):
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
            hooks.append((batch, batch_idx))

        on_test_batch_end = on_validation_batch_end

    assert evaluated(stage, light=True, callbacks=[Watching()]) == evaluated(stage, light=False)
    assert hooks == [(5, 0), (6, 1), (7, 2)]
    assert len(whole_steps) == 6
