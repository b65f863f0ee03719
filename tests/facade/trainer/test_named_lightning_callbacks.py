"""Each Lightning callback that is promised to work in `Trainer(callbacks=[...])` does its job
there.
"""

import time

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from safetensors.torch import load_file

from helpers.trainer.tiny_trainings import (
    At,
    make_trainer,
    points,
    same_bits,
    split,
    trained_trainer,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import LightningBridge

EVERY_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 4}
SWAP = "ignore:SWA is currently only supported every epoch"


def entries(of, name):
    return [(entry["step"], entry[name]) for entry in of.state.log_history if name in entry]


class Averages(Callback):
    """The weights after each step, and those of a moving average that is computed by hand."""

    mean = None

    def on_train_batch_end(self, lightning_trainer, module, *args):
        self.last = weights(module.model)
        self.mean = self.mean or weights(module.model)
        for name, value in self.last.items():
            self.mean[name].lerp_(value, 0.5)


def close(left, right):
    return all(torch.allclose(left[name], right[name], atol=1e-6) for name in left)


def valued(folder, callback, values, **changes):
    """A trainer of as many epochs as there are values, which its evaluations have one after the
    other.
    """
    left = iter(values)
    metrics = {"compute_metrics": lambda prediction: {"value": next(left)}}
    return make_trainer(folder, callbacks=[callback], **metrics, **{**EVERY_EPOCH, **changes})


def test_early_stopping(tmp_path):
    """The training ends when its metric gets no better, and how long it has been is kept in a
    checkpoint.
    """
    stopping = EarlyStopping(monitor="eval_value", patience=2)
    first = valued(tmp_path, stopping, [3.0, 2.0, 2.5, 2.6, 1.0], num_train_epochs=5)
    assert first.train().global_step == 16
    assert stopping.stopped_epoch == 3
    again = EarlyStopping(monitor="eval_value", patience=2)
    resumed = valued(tmp_path, again, [2.6, 1.0], num_train_epochs=5)
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12")).global_step == 16
    assert again.wait_count == 2
    assert float(again.best_score) == 2.0


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_model_checkpoint(tmp_path):
    """It writes Lightning's files below `output_dir`, keeps the best, and its record continues in
    a resumed training.
    """

    saving = ModelCheckpoint(monitor="eval_value", save_top_k=1)
    valued(tmp_path, saving, [3.0, 1.0, 2.0, 4.0]).train()
    (path,) = (tmp_path / "checkpoints").iterdir()
    assert saving.best_model_path == str(path)
    assert saving.best_model_score == 1.0
    content = torch.load(path, weights_only=False)
    assert content["global_step"] == 8
    assert {"model.first.weight"} <= set(content["state_dict"])
    again = ModelCheckpoint(monitor="eval_value", save_top_k=1)
    valued(tmp_path, again, [4.0]).train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert again.best_model_score == 1.0
    assert again.best_model_path == str(path)


@pytest.mark.parametrize(
    ("interval", "steps"),
    [("step", [1, 3, 5, 7]), (None, [1, 3, 5, 7]), ("epoch", [0, 4])],
    ids=str,
)
def test_learning_rate_monitor(tmp_path, interval, steps):
    """Rates of each group of parameters come into the logs, as often as logs do."""
    monitor = LearningRateMonitor(logging_interval=interval, log_weight_decay=True)
    trainer = trained_trainer(tmp_path, callbacks=[monitor], num_train_epochs=2, logging_steps=2)
    rates = entries(trainer, "lr-AdamW/pg1")
    assert [step for step, _ in rates] == steps
    assert [rate for _, rate in rates] == pytest.approx([0.01 * (1 - step / 8) for step in steps])
    assert [value for _, value in entries(trainer, "lr-AdamW/pg1-weight_decay")] == [0.0] * len(
        steps
    )
    assert [step for step, _ in entries(trainer, "loss")] == [
        2,
        4,
        6,
        8,
    ], "those of the Trainer are logged too"


@pytest.mark.filterwarnings(SWAP)
def test_stochastic_weight_averaging(tmp_path):
    """From its epoch on the rate is its own, and the final weights are the mean of those at the
    starts of epochs.
    """
    starts = {}
    note = lambda of, module: starts.update({of.current_epoch: weights(module.model)})
    averaging = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=3, annealing_epochs=1)
    trainer = trained_trainer(
        tmp_path,
        callbacks=[LambdaCallback(on_train_epoch_start=note), averaging],
        num_train_epochs=5,
    )
    mean = {name: sum(starts[epoch][name] for epoch in (2, 3, 4)) / 3 for name in starts[0]}
    assert close(weights(trainer.model), mean)
    rates = dict(entries(trainer, "learning_rate"))
    assert rates[8] == pytest.approx(0.01 * (1 - 7 / 20))
    assert all(rates[step] == pytest.approx(0.05) for step in range(17, 21)), (
        "annealed, and no longer the schedule's"
    )


@pytest.mark.parametrize("kind", [EMAWeightAveraging, WeightAveraging])
def test_weight_averaging(tmp_path, kind):
    """Evaluations, checkpoints and the final model have the averaged weights; the training
    continues with the unaveraged ones.
    """
    evaluated, watching = [], Averages()
    looking = At(
        "on_prediction_step", lambda of, state, control: evaluated.append(weights(of.model))
    )
    averaging = EMAWeightAveraging(decay=0.5) if kind is EMAWeightAveraging else WeightAveraging()
    trainer = trained_trainer(
        tmp_path,
        callbacks=[averaging, watching, looking],
        **{**EVERY_EPOCH, "num_train_epochs": 2},
    )
    bare = trained_trainer(tmp_path / "bare", **{**EVERY_EPOCH, "num_train_epochs": 2})
    assert same_bits(watching.last, weights(bare.model)), (
        "averaging has changed the training itself"
    )
    assert entries(bare, "loss") == entries(trainer, "loss")
    assert not same_bits(weights(bare.model), weights(trainer.model))
    saved = load_file(tmp_path / "checkpoint-8" / "model.safetensors")
    assert same_bits(saved, weights(trainer.model))
    assert same_bits(evaluated[-1], weights(trainer.model))
    assert entries(trainer, "eval_loss") != entries(bare, "eval_loss")
    if kind is EMAWeightAveraging:
        assert close(watching.mean, weights(trainer.model))
    trainer.save_model(str(tmp_path / "final"))
    assert same_bits(load_file(tmp_path / "final" / "model.safetensors"), weights(trainer.model))


@pytest.mark.parametrize(
    "strategy", [{"save_strategy": "steps", "save_steps": 3}, {"save_strategy": "epoch"}]
)
def test_weight_averaging_resumes(tmp_path, strategy):
    """A resumed training ends in the same weights, of the model and of the average; in mid-epoch
    too.
    """
    arguments = {"num_train_epochs": 2, **strategy}
    whole = trained_trainer(tmp_path, callbacks=[EMAWeightAveraging(decay=0.8)], **arguments)
    watching = Averages()
    resumed = make_trainer(
        tmp_path, callbacks=[EMAWeightAveraging(decay=0.8), watching], **arguments
    )
    step = min(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert same_bits(weights(whole.model), weights(resumed.model))
    assert entries(whole, "loss") == entries(resumed, "loss")
    bare = trained_trainer(tmp_path / "bare", num_train_epochs=2)
    assert same_bits(watching.last, weights(bare.model))


def test_named_lightning_callback_best_model_is_the_average(tmp_path):
    arguments = {
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        **EVERY_EPOCH,
    }
    trainer = trained_trainer(tmp_path, callbacks=[EMAWeightAveraging(decay=0.5)], **arguments)
    best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    assert same_bits(best, weights(trainer.model))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)


def test_checkpoint_with_state_of_a_missing_callback(tmp_path, caplog):
    """It is reported, and the training resumes with the averaged weights that the folder holds."""
    make_trainer(
        tmp_path, callbacks=[EarlyStopping("eval_loss")], **{**EVERY_EPOCH, "num_train_epochs": 1}
    ).train()
    trained_trainer(
        tmp_path, callbacks=[Timer()], **{**EVERY_EPOCH, "num_train_epochs": 2}, resume=True
    )
    assert "EarlyStopping" in caplog.text


def test_lightning_timer_ends_the_training(tmp_path):
    """The training ends in good order when the time is over, and time that has passed counts in
    a resumed one.
    """
    timer, again = Timer(duration={"seconds": 0.2}), Timer(duration={"seconds": 0.2})
    wait = At("on_step_end", lambda *_: time.sleep(0.05))
    options = {"num_train_epochs": 50, "save_strategy": "steps", "save_steps": 1}
    step = make_trainer(tmp_path, callbacks=[timer, wait], **options).train().global_step
    assert 1 < step < 200
    assert timer.time_elapsed() > 0.2
    trained_trainer(tmp_path, callbacks=[again], num_train_epochs=5, resume=True)
    assert again.time_elapsed() > 0.04 * step


def of_lightning(name, *given, **settings):
    return getattr(callbacks, name)(*given, **settings)


# The arguments to create each with, and what to use instead.
REFUSED = {
    "GradientAccumulationScheduler": ([{0: 1, 2: 4}], "gradient_accumulation_steps"),
    "BackboneFinetuning": ([], "requires_grad"),
    "BaseFinetuning": ([], "requires_grad"),
    "BasePredictionWriter": ([], "returns"),
    "BatchSizeFinder": ([], "auto_find_batch_size"),
    "LearningRateFinder": ([], "lightrainer lr-find"),
    "OnExceptionCheckpoint": (["unused"], "resume_from_checkpoint"),
    "LightningBridge": ([], "themselves"),
}


@pytest.mark.parametrize("way", ["callbacks", "add_callback"])
@pytest.mark.parametrize("name", REFUSED)
def test_named_lightning_callbacks_that_cannot_work_are_refused(tmp_path, name, way):
    """With the reason, and what to use instead; at construction, not in the middle of the
    training.
    """
    positional, instead = REFUSED[name]
    callback = LightningBridge() if name == "LightningBridge" else of_lightning(name, *positional)
    add = (
        make_trainer(tmp_path).add_callback
        if way == "add_callback"
        else lambda added: make_trainer(tmp_path, callbacks=[added])
    )
    with pytest.raises(ValueError, match=f"{name}.* cannot be used with this Trainer: .*{instead}"):
        add(callback)


WITHOUT_SETTINGS = """
    Callback Checkpoint DeviceStatsMonitor EMAWeightAveraging LambdaCallback LearningRateMonitor ModelCheckpoint
    ModelSummary ProgressBar RichModelSummary RichProgressBar SpikeDetection TQDMProgressBar Timer WeightAveraging
"""
WORKING = {
    **{name: {} for name in split(WITHOUT_SETTINGS)},
    "EarlyStopping": {"monitor": "eval_loss", "patience": 9},
    "ModelPruning": {"pruning_fn": "l1_unstructured", "amount": 0.5},
    "StochasticWeightAveraging": {"swa_lrs": 1e-3},
    "ThroughputMonitor": {"batch_size_fn": len},
}


def test_named_lightning_callbacks_cover_all_of_lightning():
    assert {*WORKING, *REFUSED} == {*callbacks.__all__, "LightningBridge"}


@pytest.mark.filterwarnings(
    SWAP, "ignore:When using the `ThroughputMonitor`", "ignore:Checkpoint directory .* exists"
)
@pytest.mark.filterwarnings("ignore:FLOPs not found for")
@pytest.mark.parametrize("name", WORKING)
def test_other_lightning_callbacks_train_evaluate_predict_and_resume(tmp_path, name):
    """A resumed training ends in the same weights; of pruning, whose masks are in no checkpoint,
    it is refused.
    """
    arguments = {**EVERY_EPOCH, "num_train_epochs": 2}
    whole = trained_trainer(tmp_path, callbacks=[of_lightning(name, **WORKING[name])], **arguments)
    ended = weights(whole.model)
    assert whole.evaluate()["eval_loss"] == pytest.approx(entries(whole, "eval_loss")[-1][1])
    assert len(whole.predict(points(6)).predictions) == 6
    resumed = make_trainer(tmp_path, callbacks=[of_lightning(name, **WORKING[name])], **arguments)
    if name == "ModelPruning":
        with pytest.raises(ValueError, match=r"ModelPruning .* resume_from_checkpoint"):
            resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert (ended["first.weight"] == 0).float().mean() > 0.5
    else:
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert same_bits(ended, weights(resumed.model))


def test_logs_of_callbacks_through_the_module(tmp_path):
    """`module.log` in a user's callback appears in the logs; without callbacks there
    is no logger at all.
    """

    class Logging(Callback):
        def on_train_batch_end(self, lightning_trainer, module, outputs, batch, batch_idx):
            module.log("seen", torch.tensor(float(batch_idx)))
            self.loggers = lightning_trainer.loggers

    callback = Logging()
    trainer = trained_trainer(tmp_path, callbacks=[callback], logging_steps=2)
    assert entries(trainer, "seen") == [(2, 1.0), (4, 3.0)]
    assert len(callback.loggers) == 1
    step_loggers = []
    looking = At(
        "on_step_end",
        lambda of, *_: step_loggers.append(of._lightrainer.run.lightning_trainer.loggers),
    )
    with_trainer_in_callbacks(make_trainer(tmp_path, callbacks=[looking])).train()
    assert step_loggers[0] == []
