"""The Lightning Trainer of a run is described by the training arguments alone."""

import inspect

import lightning
import pytest

from helpers.trainer.tiny_trainings import make_trainer, points, weights


@pytest.fixture
def lightning_variables(monkeypatch):
    """Set the variable of every parameter of `lightning.Trainer` to 1, which many of them
    refuse.
    """
    for name in inspect.signature(lightning.Trainer).parameters:
        monkeypatch.setenv(f"PL_TRAINER_{name.upper()}", "1")


def results(folder):
    trainer = make_trainer(folder, num_train_epochs=2)
    trainer.train()
    trained = {name: tensor.tolist() for name, tensor in weights(trainer.model).items()}
    evaluated = trainer.evaluate()["eval_loss"]
    predicted = trainer.predict(points(6)).predictions.tolist()
    return trainer.state.global_step, trained, evaluated, predicted


def test_variables_of_lightning_have_no_effect(tmp_path, request):
    expected = results(tmp_path / "without")
    request.getfixturevalue("lightning_variables")
    assert results(tmp_path / "with") == expected
    assert expected[0] == 8


def test_variables_of_lightning_reach_a_plain_trainer(monkeypatch):
    """Negative control: the names are those that Lightning reads."""
    monkeypatch.setenv("PL_TRAINER_LIMIT_TRAIN_BATCHES", "1")
    monkeypatch.setenv("PL_TRAINER_LOGGER", "False")
    assert lightning.Trainer(enable_checkpointing=False).limit_train_batches == 1
