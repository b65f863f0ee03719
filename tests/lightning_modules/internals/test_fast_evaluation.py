"""The evaluation loop behaves as Lightning's own."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.plugins import Precision

from helpers.lightning.tiny_modules import make_trainer
from lightrainer.lightning_modules.internals import fast_path, lightning_internals


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
        self.seen.append(
            (
                step,
                batch,
                batch_idx,
                modes,
                stage,
                progress.current.started,
                progress.is_last_batch,
            )
        )

    def validation_step(self, batch, batch_idx):
        self.note("validation", batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.note("test", batch, batch_idx)


class Hooks(Callback):
    """Notes each hook around a batch, with the counts and the outputs, and logs in each."""

    def __init__(self):
        self.calls = []

    def note(self, hook, trainer, module, *values):
        counts = trainer._evaluation_loop.batch_progress.state_dict()
        self.calls.append((hook, module._current_fx_name, str(counts), *map(str, values)))
        module.log(hook, float(len(self.calls)))

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.note("start", trainer, module, batch, batch_idx, dataloader_idx)

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.note("end", trainer, module, outputs, batch, batch_idx, dataloader_idx)

    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end


def evaluated(stage, light, callbacks=()):
    trainer = make_trainer(inference_mode=False, plugins=[Precision()], callbacks=list(callbacks))
    if light:
        fast_path.use_fast_loops(trainer)
    module = Noting()
    results = getattr(trainer, stage)(
        module,
        lightning_internals.combined(torch.tensor([5, 6, 7]), training=False),
        verbose=False,
    )
    loop = getattr(trainer, f"{stage}_loop")
    return (
        module.seen,
        loop.batch_progress.state_dict(),
        loop._has_run,
        loop._seen_batches_per_dataloader,
        results,
    )


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_evaluation_calls_the_module_as_lightning(stage, monkeypatch):
    whole_steps, original = [], _EvaluationLoop._evaluation_step
    monkeypatch.setattr(
        _EvaluationLoop, "_evaluation_step", lambda *args: (whole_steps.append(1), original(*args))
    )
    expected = evaluated(stage, light=False)
    assert len(expected[0]) == len(whole_steps) == 3
    assert evaluated(stage, light=True) == expected
    assert len(whole_steps) == 3, "Lightning's own step was not taken"


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_evaluation_calls_callbacks_as_lightning(stage):
    hooks = [Hooks(), Hooks()]
    expected = evaluated(stage, light=False, callbacks=hooks[:1])
    assert evaluated(stage, light=True, callbacks=hooks[1:]) == expected
    assert hooks[0].calls == hooks[1].calls
    assert len(hooks[0].calls) == 6
    assert set(expected[-1][0]) == {"start", "end"}
