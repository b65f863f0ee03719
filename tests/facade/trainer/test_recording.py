"""Values that a script records are logged as the loss is."""

import json

import pytest
import torch

from helpers import HELPERS
from helpers.processes.starting import finished_ranks
from helpers.trainer.recording_script import recorded
from helpers.trainer.tiny_trainings import At, make_trainer, points, tiny, trained_trainer
from lightrainer import Trainer


def logs(made, name):
    return [entry[name] for entry in made.state.log_history if name in entry]


def assert_recorded_as_the_loss(history, evaluated=True):
    """The recorded mean is the loss, which the model divides by the items of the step, in
    training and evaluation.
    """
    pairs = [(entry["mean"], entry["loss"]) for entry in history if "loss" in entry]
    if evaluated:
        pairs += [
            (entry["eval_mean"], entry["eval_loss"]) for entry in history if "eval_loss" in entry
        ]
    assert len(pairs) > 1
    for mean, loss in pairs:
        assert mean == pytest.approx(loss, rel=1e-5)
    assert all(entry["lone"] == pytest.approx(7.0) for entry in history if "loss" in entry)


def test_recorded_mean_is_weighted_as_the_loss(tmp_path):
    """By items over accumulated micro-batches, a shorter last window, and the last, smaller
    batch of an evaluation.
    """
    trainer = recorded(tmp_path)
    trainer.evaluate()
    assert_recorded_as_the_loss(trainer.state.log_history)


def test_recorded_values_of_two_processes(tmp_path):
    """Unevenly many labels in each, an evaluation that repeats a sample, and a name that one
    process has alone.
    """
    script = HELPERS / "trainer" / "recording_script.py"
    finished_ranks(script, str(tmp_path), log=tmp_path / "log", seconds=300)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    # The loss of an evaluated batch is over the labels in all processes; what is recorded there,
    # over those of each.
    assert_recorded_as_the_loss(first, evaluated=False)
    assert [entry.get("mean") for entry in first] == [entry.get("mean") for entry in second]


def test_micro_batches_without_counted_items_count_the_same(tmp_path):
    """A step of two micro-batches, and one of one, which weighs as much."""
    values = iter([1.0, 3.0, 5.0])

    class Values(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            self.record(value=next(values))
            return super().compute_loss(model, inputs, **kwargs)

    trainer = trained_trainer(
        tmp_path, Values, train_dataset=points(12), logging_steps=2, gradient_accumulation_steps=2
    )
    assert logs(trainer, "value") == [3.5]


def test_recorded_values_are_kept_on_resumption(tmp_path):
    """The checkpoint is in the middle of the interval of a log."""
    whole = recorded(tmp_path / "whole", logging_steps=4)
    stop = At(
        "on_step_end",
        lambda _, state, control: setattr(control, "should_training_stop", True),
        step=6,
    )
    recorded(tmp_path / "parts", stop, logging_steps=4, save_strategy="steps", save_steps=6)
    resumed = recorded(
        tmp_path / "parts", resume=True, logging_steps=4, save_strategy="steps", save_steps=6
    )
    assert logs(resumed, "mean") == logs(whole, "mean")
    assert len(logs(whole, "mean")) == 2


def test_callbacks_record_too(tmp_path):
    def note(event):
        def act(trainer, state, control):
            trainer.record(**{event: torch.tensor(float(state.global_step))})

        callback = At(event, act)
        callback.trainer = callback
        return callback

    trainer = make_trainer(
        tmp_path, callbacks=[note("on_step_end"), note("on_prediction_step")], logging_steps=2
    )
    trainer.train()
    assert logs(trainer, "on_step_end") == [1.5, 3.5]
    assert trainer.evaluate()["eval_on_prediction_step"] == 4
    with pytest.raises(RuntimeError, match="value"):
        trainer.record(value=1)


@pytest.mark.parametrize("values", [{"loss": 1.0}, {"odd": "text"}, {"odd": torch.ones(2)}])
def test_record_refuses_what_is_not_a_number(tmp_path, values):
    class Odd(Trainer):
        def training_step(self, *args, **kwargs):
            self.record(**values)
            return super().training_step(*args, **kwargs)

    (name,) = values
    with pytest.raises(ValueError, match=name):
        make_trainer(tmp_path, Odd).train()


def test_losses_of_the_model(tmp_path):
    """`loss_dict`, and outputs named `*_loss`, if requested."""

    class Detector(type(tiny())):
        def forward(self, x, labels=None):
            outputs = super().forward(x, labels)
            parts = {"ce": outputs["loss"], "loss": outputs["loss"], "boxes": torch.ones(2)}
            return {
                **outputs,
                "loss_dict": parts,
                "box_loss": outputs["loss"] * 2,
                "none_loss": None,
            }

    options = {"per_device_train_batch_size": 4, "logging_steps": 2}
    trainer = trained_trainer(tmp_path, model=Detector(), record_model_losses=True, **options)
    assert logs(trainer, "ce") == pytest.approx(logs(trainer, "loss"), rel=1e-6)
    assert logs(trainer, "box_loss") == pytest.approx(
        [2 * loss for loss in logs(trainer, "loss")], rel=1e-6
    )
    assert not {"boxes", "none_loss"} & set(trainer.state.log_history[0])
    assert {"eval_ce", "eval_box_loss"} <= set(trainer.evaluate())
    without = trained_trainer(tmp_path, model=Detector(), **options)
    assert not logs(without, "ce")
