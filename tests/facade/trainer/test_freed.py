"""An unreferenced Trainer is freed at once, with its model and optimizer, as in the reference."""

import gc
import weakref

import pytest

from helpers.trainer.tiny_trainings import make_trainer, points


def train_and_evaluate(trainer):
    trainer.train()
    trainer.evaluate()


def save_and_resume(trainer):
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 2
    trainer.train()
    trainer.save_model()
    trainer.train(resume_from_checkpoint=True)


@pytest.fixture
def no_collector():
    """Reference cycles stay until the garbage collector runs."""
    gc.disable()
    yield
    gc.enable()


USES = [
    lambda trainer: None,
    lambda trainer: trainer.predict(points(4)),
    train_and_evaluate,
    save_and_resume,
]


@pytest.mark.parametrize("use", USES)
def test_freed_with_its_last_reference(tmp_path, no_collector, use):
    make_trainer(tmp_path).train()  # imports, whose exceptions would keep the frames that imported
    gc.collect()
    trainer = make_trainer(tmp_path)
    use(trainer)
    held = [
        weakref.ref(part)
        for part in (trainer, trainer.model, trainer.optimizer)
        if part is not None
    ]
    del trainer
    assert [reference() for reference in held] == [None] * len(held)
