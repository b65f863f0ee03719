"""How a Trainer behaves over its life: several trainings, modes of the model, interruptions,
errors, callbacks.
"""

import copy
import signal
import sys

import pytest
import torch
from torch.utils.data import IterableDataset

from helpers.trainer.tiny_trainings import (
    At,
    Tiny,
    losses,
    make_trainer,
    points,
    same_bits,
    trained_trainer,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import Trainer

# --- several runs of one trainer


def test_process_group_is_left_at_the_end(tmp_path):
    """As in 5.18; a second call, or one without a group, does nothing."""
    trainer = trained_trainer(tmp_path)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    trainer.end()
    assert not torch.distributed.is_initialized()
    trainer.end()


def test_train_twice_keeps_the_model_and_resets_the_steps(tmp_path):
    trainer = make_trainer(tmp_path)
    first = trainer.train()
    after_first = weights(trainer.model)
    rates = [
        entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry
    ]
    second = trainer.train()
    assert first.global_step == second.global_step == trainer.state.global_step == 4
    assert [
        entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry
    ] == rates
    assert len(losses(trainer)) == 4
    assert not same_bits(after_first, weights(trainer.model))
    assert second.training_loss < first.training_loss


class Stream(IterableDataset):
    def __iter__(self):
        return iter(points())


COPIED = {
    "a table": {},
    "a stream": {"train_dataset": Stream(), "eval_dataset": Stream(), "max_steps": 4},
    "workers that stay": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
}


@pytest.mark.parametrize("kind", COPIED)
def test_copy_of_a_trained_trainer_trains_as_the_original(tmp_path, kind):
    """Neither the loaders nor their iterations, which cannot be copied, hinder `deepcopy`."""
    model = Tiny(dropout=0.0)
    trainer = trained_trainer(
        tmp_path, model=model, eval_strategy="steps", eval_steps=2, **COPIED[kind]
    )
    after_first = weights(trainer.model)

    copied = copy.deepcopy(trainer)
    copied.train()
    assert same_bits(after_first, weights(trainer.model))

    trainer.train()
    assert same_bits(weights(copied.model), weights(trainer.model))


LISTENING = [{}, {"save_strategy": "steps"}, {"enable_jit_checkpoint": True}]


@pytest.mark.parametrize("listening", LISTENING, ids=str)
def test_copy_of_a_trainer_in_its_training_evaluates(tmp_path, listening):
    """Also where the training listens to signals, and would save at once."""
    metrics = []
    evaluate_copy = At("on_step_end", lambda of, *_: metrics.append(copy.deepcopy(of).evaluate()))
    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path, callbacks=[evaluate_copy], max_steps=2, **listening)
    )
    trainer.train()
    assert metrics[-1]["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_copy_of_a_trainer_leaves_the_evaluations_of_its_training_alone(tmp_path):
    """Both share the accelerator, whose strategy names the model to evaluate."""
    evaluate_copy = At("on_step_end", lambda of, *_: copy.deepcopy(of).evaluate(), step=1)
    evaluated = {"eval_strategy": "steps", "eval_steps": 3}
    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path, callbacks=[evaluate_copy], max_steps=3, **evaluated)
    )
    trainer.train()
    last_logged = [entry for entry in trainer.state.log_history if "eval_loss" in entry][-1]
    assert last_logged["step"] == 3
    assert last_logged["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_model_init_starts_from_the_same_weights(tmp_path):
    trainer = trained_trainer(tmp_path, model_init=lambda: Tiny())
    first, model = weights(trainer.model), trainer.model
    trainer.train()
    assert same_bits(first, weights(trainer.model))
    assert trainer.model is not model
    assert trainer.model_wrapped is trainer.model


def test_gradients_of_the_past_do_not_count(tmp_path):
    """Leftovers in `.grad`, of a script or an interrupted training, are not part of the first
    step.
    """
    clean = trained_trainer(tmp_path)
    trainer = make_trainer(tmp_path)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, 10.0)
    trainer.train()
    assert losses(trainer) == losses(clean)
    assert same_bits(weights(trainer.model), weights(clean.model))


# --- modes of the model


def test_training_step_sets_training_mode_on_every_module(tmp_path):
    """A module left in evaluation mode by a callback would silently train without dropout."""
    modes = []
    forget = At("on_step_begin", lambda of, *_: of.model.dropout.eval())
    trainer = make_trainer(
        tmp_path,
        callbacks=[
            forget,
            At("on_step_end", lambda of, *_: modes.append(of.model.dropout.training)),
        ],
    )
    with_trainer_in_callbacks(trainer).train()
    assert modes == [True] * 4


# --- interruptions and errors


@pytest.mark.parametrize(
    "event", ["on_train_begin", "on_step_begin", "on_step_end", "on_prediction_step", "on_log"]
)
def test_interruption_reaches_the_script(tmp_path, event):
    """As KeyboardInterrupt, not as the end of the process; Ctrl-C works afterwards, and so does
    the trainer.
    """
    handler = signal.getsignal(signal.SIGINT)
    interrupted = []

    def interrupt(*_):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    trainer = make_trainer(
        tmp_path, callbacks=[At(event, interrupt)], eval_strategy="steps", eval_steps=1
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert signal.getsignal(signal.SIGINT) is handler
    assert not trainer.is_in_train
    assert trainer.train().global_step == 4
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize(
    "act", [lambda made: made.evaluate(), lambda made: made.predict(points(4))]
)
def test_interruption_of_an_evaluation_reaches_the_script(tmp_path, act):
    def interrupt(*_):
        raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        act(make_trainer(tmp_path, callbacks=[At("on_prediction_step", interrupt)]))
    assert signal.getsignal(signal.SIGINT) is handler


def test_exit_keeps_its_code(tmp_path):
    """A callback that answers Ctrl-C by exiting with its own code."""

    def leave(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(3)

    with pytest.raises(SystemExit) as raised:
        make_trainer(tmp_path, callbacks=[At("on_step_end", leave)]).train()
    assert raised.value.code == 3


STEPS = [
    "training_step",
    "compute_loss",
    "prediction_step",
    "create_optimizer",
    "_save",
    "get_train_dataloader",
    "log",
]


@pytest.mark.parametrize("name", STEPS)
def test_user_error_is_raised_unchanged(tmp_path, name):
    problem = LookupError("as planned")

    def fail(self, *_, **__):
        raise problem

    cls = type("Failing", (Trainer,), {name: fail})
    trainer = make_trainer(
        tmp_path, cls, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2
    )
    with pytest.raises(LookupError) as raised:
        trainer.train()
    assert raised.value is problem
    assert not trainer.is_in_train
    setattr(cls, name, getattr(Trainer, name))
    assert trainer.train().global_step == 4


# --- callbacks


def test_copied_trainer_creates_its_own_components(tmp_path):
    """Uploads, signals and states of callbacks are of one Trainer; what the user gave is shared."""
    trainer = make_trainer(tmp_path)
    assert trainer._lightrainer.callback_states.trainer is trainer
    copied = copy.copy(trainer)
    assert copied._lightrainer.callback_states.trainer is copied
    assert copied.callback_handler is trainer.callback_handler


@pytest.mark.parametrize("max_steps", [0, -1])
def test_max_steps_of_zero_trains_the_epochs(tmp_path, max_steps):
    trainer = trained_trainer(tmp_path, max_steps=max_steps, num_train_epochs=2)
    assert (trainer.state.global_step, trainer.state.max_steps) == (8, 8)
