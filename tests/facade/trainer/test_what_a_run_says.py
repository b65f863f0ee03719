"""Messages of a training: announcements, interrupts, errors in user code."""

import os
import signal
import traceback

import pytest

from helpers.trainer.tiny_trainings import At, Tiny, make_trainer, points
from lightrainer import ProgressCallback, Trainer
from lightrainer.facade.evaluation.metrics import StartTime


class Failing(Tiny):
    """Cannot compute its forward pass in one of the modes."""

    def __init__(self, in_training):
        super().__init__()
        self.in_training = in_training

    def forward(self, x, labels=None):
        if self.training is self.in_training:
            raise ValueError("a shape that cannot be")
        return super().forward(x, labels)


def frames_of(error):
    return traceback.extract_tb(error.__traceback__)


@pytest.mark.parametrize("place", ["training", "evaluation", "callback", "data"])
def test_traceback_ends_at_the_line_of_the_user(tmp_path, place):
    class Data(list):
        def __getitem__(self, index):
            raise ValueError("no such file")

    def fail(*positional):
        raise ValueError("not my day")

    settings = {
        "training": {"model": Failing(True)},
        "evaluation": {"model": Failing(False), "eval_strategy": "steps", "eval_steps": 2},
        "callback": {"callbacks": [At("on_step_end", fail, 2)]},
        "data": {"train_dataset": Data(points(16))},
    }[place]
    with pytest.raises(ValueError, match=r"a shape|no such|not my") as caught:
        make_trainer(tmp_path, **settings).train()
    frames = frames_of(caught.value)
    assert len(frames) <= 30
    assert "raise ValueError" in frames[-1].line
    assert "train" in [frame.name for frame in frames]
    assert not [frame for frame in frames if "/lightning/" in frame.filename]
    if place in ("training", "evaluation"):
        assert "compute_loss" in [frame.name for frame in frames]


@pytest.mark.parametrize("place", ["training", "evaluation"])
def test_error_closes_the_progress_bars(tmp_path, capsys, place):
    """The traceback begins on a new line, and the bars are not left for Python to close at exit."""
    settings = {"model": Failing(place == "training"), "eval_strategy": "steps", "eval_steps": 2}
    trainer = make_trainer(tmp_path, disable_tqdm=False, **settings)
    (progress,) = [
        callback
        for callback in trainer.callback_handler.callbacks
        if isinstance(callback, ProgressCallback)
    ]
    with pytest.raises(ValueError, match="a shape"):
        trainer.train()
    assert progress.training_bar is None
    assert progress.prediction_bar is None
    assert capsys.readouterr().err.endswith("\n")


class WithoutLoss(Tiny):
    """Returns logits only."""

    def forward(self, x, labels=None):
        return {"logits": super().forward(x)["logits"]}


OWN_ERRORS = {
    "no loss": ({"model": WithoutLoss()}, "compute_loss"),
    "a metric that is missing": (
        {
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": "f1",
        },
        "train",
    ),
    "in an optimizer of torch": (
        {"optim": "adagrad", "optim_args": "lr_decay=-1"},
        "train",
    ),
}


@pytest.mark.parametrize("case", OWN_ERRORS)
def test_traceback_of_an_own_error_has_no_loop_frames(tmp_path, case):
    settings, method = OWN_ERRORS[case]
    with pytest.raises((ValueError, LookupError), match=r"loss|f1|lr_decay") as caught:
        make_trainer(tmp_path, **settings).train()
    frames = frames_of(caught.value)
    assert len(frames) <= 6
    assert method in [frame.name for frame in frames]
    assert "raise " in frames[-1].line


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_traceback_of_an_evaluation_has_no_loop_frames(tmp_path, method):
    trainer = make_trainer(tmp_path, model=Failing(False))
    with pytest.raises(ValueError, match="a shape") as caught:
        trainer.evaluate() if method == "evaluate" else trainer.predict(points(4))
    frames = frames_of(caught.value)
    assert "raise ValueError" in frames[-1].line
    assert not [frame for frame in frames if "/lightning/" in frame.filename]


def test_traceback_of_a_cause_is_shortened(tmp_path):
    class Wrapping(Trainer):
        def training_step(self, *args, **kwargs):
            try:
                return super().training_step(*args, **kwargs)
            except ValueError as error:
                raise ArithmeticError("while training") from error

    with pytest.raises(ArithmeticError) as caught:
        make_trainer(tmp_path, Wrapping, model=WithoutLoss()).train()
    cause = caught.value.__cause__
    assert cause is not None
    assert [frame.name for frame in frames_of(cause)] == [
        "training_step",
        "training_step",
        "compute_loss",
        "read_loss",
    ]


def test_traceback_is_whole_on_request(tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setenv("LIGHTRAINER_TRACEBACK", "full")
    with pytest.raises(ValueError, match="a shape") as caught:
        make_trainer(tmp_path, model=Failing(True)).train()
    assert [frame for frame in frames_of(caught.value) if "/lightning/" in frame.filename]


@pytest.mark.parametrize("tracebacks", ["short", "full"])
def test_cuda_assert_names_its_usual_causes(tmp_path, monkeypatch, tracebacks):
    monkeypatch.setenv("LIGHTRAINER_TRACEBACK", tracebacks)

    class Asserting(Tiny):
        def forward(self, x, labels=None):
            raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        make_trainer(tmp_path, model=Asserting()).train()
    note = caught.value.__notes__[0]
    assert "label" in note
    assert "token id" in note
    assert "use_cpu=True" in note


@pytest.mark.parametrize(
    ("number", "ending"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
@pytest.mark.parametrize("event", ["on_step_end", "on_prediction_step"])
def test_interrupt_names_the_checkpoint(tmp_path, caplog, capsys, number, ending, event):
    """And sees no summary as if all was done, and no frames of loops."""
    send = At(event, lambda *_: os.kill(os.getpid(), number), 3 if event == "on_step_end" else 4)
    saving = {"max_steps": 8, "save_strategy": "steps", "save_steps": 100}
    trainer = make_trainer(
        tmp_path, callbacks=[send], eval_strategy="steps", eval_steps=4, **saving
    )
    with pytest.raises(ending) as caught:
        trainer.train()
    step = trainer.state.global_step
    assert (
        f"The checkpoint is {tmp_path / f'checkpoint-{step}'}. To resume from it: " in caplog.text
    )
    assert "trainer.train(resume_from_checkpoint=True)" in caplog.text
    assert (tmp_path / f"checkpoint-{step}").is_dir()
    assert "train_runtime" not in capsys.readouterr().out
    assert not [entry for entry in trainer.state.log_history if "train_runtime" in entry]
    assert len(frames_of(caught.value)) <= 30


def test_speeds_count_what_this_call_did(tmp_path, monkeypatch):
    """A training of 4 steps of 2 samples, the last of which is resumed; as in 5.23."""
    monkeypatch.setattr(StartTime, "seconds_ago", 1.0)
    make_trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=3).train()
    metrics = (
        make_trainer(tmp_path, max_steps=4)
        .train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        .metrics
    )
    whole = make_trainer(tmp_path, max_steps=4).train().metrics
    for name in ("train_samples_per_second", "train_steps_per_second"):
        assert metrics[name] == whole[name] / 4
