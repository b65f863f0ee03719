"""An unreferenced Trainer is freed at once, with its model and optimizer, as in the reference."""

import gc
import weakref

import pytest

from tests.facade.tiny import points
from tests.facade.tiny import trainer as made


def nothing(trainer):
    pass


def train_and_evaluate(trainer):
    trainer.train()
    trainer.evaluate()


def train_and_save(trainer):
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 2
    trainer.train()
    trainer.save_model()
    trainer.save_state()


def resume(trainer):
    train_and_save(trainer)
    trainer.train(resume_from_checkpoint=True)


@pytest.fixture
def no_collector():
    """Reference cycles stay until the garbage collector runs."""
    gc.disable()
    yield
    gc.enable()


USES = [
    nothing,
    lambda trainer: trainer.train(),
    lambda trainer: trainer.evaluate(),
    lambda trainer: trainer.predict(points(4)),
    train_and_evaluate,
    train_and_save,
    resume,
]


@pytest.mark.parametrize(
    "use", USES, ids=["constructed", "trained", "evaluated", "predicted", "trained and evaluated", "saved", "resumed"]
)
def test_freed_with_its_last_reference(tmp_path, no_collector, use):
    made(tmp_path).train()  # imports, whose exceptions would keep the frames that imported
    gc.collect()
    trainer = made(tmp_path)
    use(trainer)
    held = [weakref.ref(one) for one in (trainer, trainer.model, trainer.optimizer) if one is not None]
    del trainer
    assert [one() for one in held] == [None] * len(held)


def test_components_say_that_their_trainer_is_gone(tmp_path):
    checkpoints = made(tmp_path)._checkpoints
    with pytest.raises(ReferenceError, match="CheckpointSaver was asked for its host"):
        _ = checkpoints.host
