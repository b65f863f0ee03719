"""Messages of a training: announcements, interrupts, errors in user code."""

import os
import signal

import pytest

from helpers.trainer.tiny_trainings import At, Tiny, trainer
from lightrainer import ProgressCallback
from lightrainer.facade.evaluation.metrics import Moment


class Failing(Tiny):
    """Cannot compute its forward pass in one of the modes."""

    def __init__(self, in_training):
        super().__init__()
        self.in_training = in_training

    def forward(self, x, labels=None):
        if self.training is self.in_training:
            raise ValueError("a shape that cannot be")
        return super().forward(x, labels)


@pytest.mark.parametrize("place", ["training", "evaluation"])
def test_an_error_closes_the_progress_bars(tmp_path, capsys, place):
    """The traceback begins on a line of its own, and Python does not close them as it ends."""
    settings = {"model": Failing(place == "training"), "eval_strategy": "steps", "eval_steps": 2}
    made = trainer(tmp_path, disable_tqdm=False, **settings)
    (progress,) = [
        one for one in made.callback_handler.callbacks if isinstance(one, ProgressCallback)
    ]
    with pytest.raises(ValueError, match="a shape"):
        made.train()
    assert progress.training_bar is None
    assert progress.prediction_bar is None
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize(
    ("number", "ending"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
@pytest.mark.parametrize("event", ["on_step_end", "on_prediction_step"])
def test_an_interrupt_names_the_checkpoint(tmp_path, caplog, capsys, number, ending, event):
    """And sees no summary as if all was done."""
    send = At(event, lambda *_: os.kill(os.getpid(), number), 3 if event == "on_step_end" else 4)
    saving = {"max_steps": 8, "save_strategy": "steps", "save_steps": 100}
    made = trainer(tmp_path, callbacks=[send], eval_strategy="steps", eval_steps=4, **saving)
    with pytest.raises(ending):
        made.train()
    step = made.state.global_step
    assert (
        f"The checkpoint is {tmp_path / f'checkpoint-{step}'}. To resume from it: " in caplog.text
    )
    assert "trainer.train(resume_from_checkpoint=True)" in caplog.text
    assert (tmp_path / f"checkpoint-{step}").is_dir()
    assert "train_runtime" not in capsys.readouterr().out
    assert not [entry for entry in made.state.log_history if "train_runtime" in entry]


def test_speeds_count_what_this_call_did(tmp_path, monkeypatch):
    """A training of 4 steps of 2 samples, the last of which is resumed; as in 5.23."""
    monkeypatch.setattr(Moment, "seconds_ago", 1.0)
    trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=3).train()
    metrics = (
        trainer(tmp_path, max_steps=4)
        .train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        .metrics
    )
    whole = trainer(tmp_path, max_steps=4).train().metrics
    for name in ("train_samples_per_second", "train_steps_per_second"):
        assert metrics[name] == whole[name] / 4
