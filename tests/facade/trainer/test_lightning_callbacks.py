"""Callbacks of Lightning in `callbacks=` get their hooks beside the TrainerCallbacks, with the
same count of steps.
"""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback

from helpers.trainer.tiny_trainings import (
    At,
    make_trainer,
    points,
    split,
    trained_trainer,
    with_trainer_in_callbacks,
)

# Hooks of Lightning that a training, an evaluation and a prediction are made of.
HOOKS = split("""
    setup teardown on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end
    on_train_batch_start on_train_batch_end on_before_zero_grad on_before_backward on_after_backward
    on_before_optimizer_step on_validation_start on_validation_end on_validation_epoch_start
    on_validation_epoch_end on_validation_batch_start on_validation_batch_end on_test_start on_test_end
    on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end on_predict_start on_predict_end
    on_predict_batch_start on_sanity_check_start on_exception
    """)
BATCHES = ["batch_start", "batch_end"] * 2
VALIDATION = [
    f"on_validation_{hook}" for hook in ("start", "epoch_start", *BATCHES, "epoch_end", "end")
]


def recorder(events):
    """A Lightning callback that notes each hook with Lightning's count of steps."""

    def note(hook):
        def method(self, lightning_trainer, module, *positional, **keywords):
            self.module = module
            events.append((hook, lightning_trainer.global_step))

        return method

    return type("Recorder", (Callback,), {hook: note(hook) for hook in HOOKS})()


@pytest.fixture
def events():
    return []


def names(events):
    return [hook for hook, _ in events]


def test_lightning_hooks_of_one_step(tmp_path, events):
    make_trainer(tmp_path, callbacks=[recorder(events)], max_steps=1).train()
    before = (
        "setup on_fit_start on_train_start on_train_epoch_start on_train_batch_start "
        "on_before_backward"
    )
    before += " on_after_backward on_before_optimizer_step"
    after = (
        "on_before_zero_grad on_train_batch_end on_train_epoch_end on_train_end on_fit_end teardown"
    )
    assert events == [(hook, 0) for hook in before.split()] + [(hook, 1) for hook in after.split()]


@pytest.mark.parametrize(("method", "stage"), [("evaluate", "validation"), ("predict", "test")])
def test_outside_of_a_training(tmp_path, events, method, stage):
    """`evaluate` is Lightning's validation, `predict` its test."""
    trainer = make_trainer(tmp_path, callbacks=[recorder(events)])
    getattr(trainer, method)(points(6, seed=2))
    assert names(events) == [
        "setup",
        *[hook.replace("validation", stage) for hook in VALIDATION],
        "teardown",
    ]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_lightning_steps_equal_those_without_callbacks(tmp_path, accumulation):
    """Lightning's `global_step` is `state.global_step` in every hook; a window of micro-batches
    is one batch.
    """
    pairs = []

    def compare(hook):
        def method(self, lightning_trainer, *positional, **keywords):
            pairs.append((hook, lightning_trainer.global_step, trainer.state.global_step))

        return method

    callback = type(
        "Comparing", (Callback,), {hook: compare(hook) for hook in HOOKS if hook != "on_exception"}
    )()
    options = {
        "gradient_accumulation_steps": accumulation,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    trainer = make_trainer(
        tmp_path, callbacks=[callback], train_dataset=points(28), num_train_epochs=2, **options
    )
    trainer.train()
    assert [pair for pair in pairs if pair[1] != pair[2]] == []
    steps = {1: 14, 3: 6}[accumulation]
    hooks = names(pair[:2] for pair in pairs)
    assert hooks.count("on_train_batch_start") == hooks.count("on_before_optimizer_step") == steps
    assert hooks.count("on_before_backward") == hooks.count("on_after_backward") == 14
    assert hooks.count("on_train_epoch_start") == hooks.count("on_train_epoch_end") == 2
    assert max(pair[1] for pair in pairs) == steps


def test_evaluation_inside_a_training_gives_the_validation_hooks(tmp_path, events):
    trained_trainer(tmp_path, callbacks=[recorder(events)], eval_strategy="steps", eval_steps=2)
    validations = [event for event in events if event[0].startswith("on_validation")]
    assert names(validations) == VALIDATION * 2
    assert [step for _, step in validations] == [2] * 8 + [4] * 8
    hooks = names(events)
    assert hooks.index("on_validation_start") < hooks.index(
        "on_train_batch_end", hooks.index("on_validation_start")
    )
    assert hooks.count("setup") == hooks.count("teardown") == hooks.count("on_fit_start") == 1
    assert not {"on_sanity_check_start", "on_exception"} & set(hooks)


EVENTS = [
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_step_end",
    "on_epoch_end",
]


@pytest.mark.parametrize("event", [*EVENTS, "on_train_end"])
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_lightning_callback_requests_an_evaluation(tmp_path, events, event, method):
    """At any point of the training it is Lightning's validation, and the training continues
    unchanged.
    """
    undisturbed, evaluated_at = make_trainer(tmp_path), []
    undisturbed.train()

    def act(of, state, control):
        if not evaluated_at:
            evaluated_at.append(state.global_step)
            of.evaluate() if method == "evaluate" else of.predict(points(6, seed=2))

    trainer = make_trainer(tmp_path, callbacks=[At(event, act), recorder(events)])
    with_trainer_in_callbacks(trainer).train()
    assert [hook for hook in names(events) if hook.startswith("on_validation")] == VALIDATION
    assert {step for hook, step in events if hook.startswith("on_validation")} == set(evaluated_at)
    training_hooks = [hook for hook in names(events) if not hook.startswith("on_validation")]
    assert (
        training_hooks.count("on_train_batch_start")
        == training_hooks.count("on_before_optimizer_step")
        == 4
    )
    assert training_hooks[-3:] == ["on_train_end", "on_fit_end", "teardown"]
    assert trainer.state.global_step == undisturbed.state.global_step == 4


def test_hooks_see_the_model_the_optimizer_and_the_gradients(tmp_path):
    values = {}

    def step(lightning_trainer, module, optimizer):
        values["gradient"] = module.model.first.weight.grad.abs().sum().item()
        values["rate"] = optimizer.param_groups[0]["lr"]

    looking = LambdaCallback(
        on_train_start=lambda of, module: values.update(
            model=module.model, optimizers=of.optimizers
        ),
        on_before_backward=lambda of, module, loss: values.update(loss=loss.item()),
        on_before_optimizer_step=step,
        on_train_batch_end=lambda of, module, outputs, batch, n: values.update(
            outputs=outputs, micro_batches=len(batch)
        ),
    )
    trainer = trained_trainer(tmp_path, callbacks=[looking], max_steps=1)
    assert values["model"] is trainer.model
    assert values["optimizers"] == [trainer.optimizer]
    assert values["gradient"] > 0
    assert values["rate"] == trainer.args.learning_rate
    assert values["loss"] == trainer.state.log_history[0]["loss"]
    assert values["micro_batches"] == 1
    assert torch.is_tensor(values["outputs"]) or values["outputs"]["loss"] == values["loss"]


def test_lightning_callbacks_receive_exceptions(tmp_path):
    told_of = []

    listening = LambdaCallback(on_exception=lambda of, module, exception: told_of.append(exception))
    problem = ArithmeticError("as planned")

    def fail(*_):
        raise problem

    trainer = make_trainer(tmp_path, callbacks=[listening, At("on_step_end", fail)])
    with pytest.raises(ArithmeticError) as raised:
        trainer.train()
    assert raised.value is problem
    assert told_of == [problem]


@pytest.mark.parametrize("by", ["object", "class"])
@pytest.mark.parametrize("way", ["pop_callback", "remove_callback"])
def test_lightning_callbacks_can_be_added_and_taken_out(tmp_path, events, way, by):
    """As a TrainerCallback, by the object or by its class; once removed, it is not called."""
    callback, other = recorder(events), recorder(events)
    trainer = make_trainer(tmp_path, callbacks=[other])
    trainer.add_callback(callback)
    for listener in (callback, other):
        removed = getattr(trainer, way)(listener if by == "object" else type(listener))
        assert removed is (listener if way == "pop_callback" else None)
    trainer.train()
    assert events == []


def test_lightning_callback_stops_the_training(tmp_path):
    """A regular end: the events and the result of a training of that many steps."""
    ended = []

    def stop(lightning_trainer, *_):
        lightning_trainer.should_stop = lightning_trainer.global_step == 2

    end = At("on_train_end", lambda trainer, state, control: ended.append(state.global_step))
    trainer = make_trainer(
        tmp_path, callbacks=[LambdaCallback(on_train_batch_end=stop), end], num_train_epochs=3
    )
    assert trainer.train().global_step == 2
    assert ended == [2]


class NotesClosures(torch.optim.SGD):
    """Some optimizers take another step where they get a closure."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.closures = []

    def step(self, closure=None):
        self.closures.append(closure)
        return super().step(closure)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning_callback_changes_no_step(tmp_path, events, accumulation):
    weights = []
    for callbacks in ([], [recorder(events)]):
        trainer = make_trainer(
            tmp_path, callbacks=callbacks, gradient_accumulation_steps=accumulation
        )
        optimizer = NotesClosures(trainer.model.parameters())
        trainer.optimizer = optimizer
        trainer.train()
        assert set(optimizer.closures) == {None}
        weights.append(torch.cat([weight.flatten() for weight in trainer.model.parameters()]))
    assert torch.equal(*weights)
    assert names(events).count("on_before_optimizer_step") == len(optimizer.closures)


def test_lightning_callback_may_log_in_all_hooks(tmp_path):
    def log(name):
        return lambda lightning_trainer, module, *_: module.log(
            name, 1.0, on_step=True, on_epoch=False
        )

    hooks = [
        "on_train_batch_start",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
    ]
    hooks += ["on_before_zero_grad", "on_train_batch_end"]
    trainer = trained_trainer(
        tmp_path, callbacks=[LambdaCallback(**{hook: log(hook) for hook in hooks})], max_steps=1
    )
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert logged.issuperset(hooks)
