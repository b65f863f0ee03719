"""The handler: one funnel for all events, cheap where nothing is to be done."""

import logging
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from transformers import trainer_callback as reference

import lightrainer.callbacks as ours
from lightrainer.callbacks import (
    EVENTS,
    CallbackHandler,
    DefaultFlowCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

EXTRA = {"on_log": ("logs",), "on_evaluate": ("metrics",), "on_predict": ("metrics",)}
ARGS = SimpleNamespace()
SWITCHES = dict.fromkeys(TrainerControl().state()["args"], True)


class Recorder(TrainerCallback):
    """Notes the name of every event that it receives."""

    def __init__(self):
        self.seen = []


def _recording(event):
    def method(self, args, state, control, **kwargs):
        self.seen.append((event, kwargs))

    return method


for _event in EVENTS:
    setattr(Recorder, _event, _recording(_event))


def make(*callbacks):
    return CallbackHandler([DefaultFlowCallback, *callbacks], "model", "tokenizer", "optimizer", "scheduler")


def fire(handler, event, control=None, state=None):
    arguments = (ARGS, state or TrainerState(), control or TrainerControl())
    return getattr(handler, event)(*arguments, *({name: 1.0} for name in EXTRA.get(event, ())))


class OwnFlow(DefaultFlowCallback):
    """A flow without rules, so that only the handler touches the switches."""

    def on_step_end(self, args, state, control, **kwargs):
        return None

    def on_epoch_end(self, args, state, control, **kwargs):
        return None


@pytest.mark.parametrize("event", EVENTS)
def test_switches_are_reset_and_arguments_passed_as_by_the_reference(event):
    def outcome(module):
        flow = type("Flow", (module.DefaultFlowCallback,), {"on_step_end": OwnFlow.on_step_end})
        flow.on_epoch_end = OwnFlow.on_epoch_end
        recorder = Recorder()
        handler = module.CallbackHandler([flow(), recorder], "model", "tokenizer", "optimizer", "scheduler")
        handler.train_dataloader, handler.eval_dataloader = "train", "eval"
        control = module.TrainerControl(**SWITCHES)
        assert fire(handler, event, control) is control
        return control.state(), recorder.seen

    assert outcome(ours) == outcome(reference)


def test_events_take_keywords_of_a_script():
    """As in 5.23."""
    recorder = Recorder()
    make(recorder).on_train_begin(ARGS, TrainerState(), TrainerControl(), mine=3)
    assert recorder.seen[0][1]["mine"] == 3


@pytest.mark.parametrize("event", EVENTS)
def test_a_replaced_call_event_sees_every_event(event):
    handler, seen = make(), []
    original = handler.call_event
    handler.call_event = lambda name, *args, **kwargs: (seen.append(name), original(name, *args, **kwargs))[1]
    handler.callbacks[:] = []
    assert isinstance(fire(handler, event), TrainerControl)
    assert seen == [event]


def calls_of(function, during):
    """How often Python code of `function` ran."""
    count = 0

    def watch(frame, what, _):
        nonlocal count
        count += what == "call" and frame.f_code is function.__code__

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        during()
    finally:
        sys.setprofile(before)
    return count


def test_an_event_that_is_not_overridden_is_not_called():
    class Explicit(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            super().on_step_begin(args, state, control, **kwargs)

    handler = make(PrinterCallback, ProgressCallback)
    base = TrainerCallback.on_step_begin
    assert calls_of(base, lambda: fire(handler, "on_step_begin")) == 0
    handler.add_callback(Explicit)
    assert calls_of(base, lambda: fire(handler, "on_step_begin")) == 1


def test_events_put_in_place_later_are_called(monkeypatch):
    """On a class, on the base class and on an instance, before or after the event was called for the first time."""
    callback, calls = TrainerCallback(), []
    handler = make(callback)
    fire(handler, "on_step_begin")
    monkeypatch.setattr(DefaultFlowCallback, "on_step_begin", lambda self, *a, **k: calls.append("class"))
    monkeypatch.setattr(TrainerCallback, "on_substep_end", lambda self, *a, **k: calls.append("base"))
    callback.on_save = lambda *args, **kwargs: calls.append(kwargs["model"])
    callback.on_step_begin = MagicMock(return_value=None)
    for event in ("on_step_begin", "on_substep_end", "on_save"):
        fire(handler, event)
    assert calls == ["class", "base", "base", "model"]
    callback.on_step_begin.assert_called_once()


def test_a_wrong_signature_is_an_error_although_the_body_is_empty():
    narrow = type("Narrow", (TrainerCallback,), {"on_step_begin": lambda self, args, state, control: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'model'"):
        fire(make(narrow), "on_step_begin")


def test_an_object_with_only_some_events_works():
    class Some:
        steps = 0

        def on_step_begin(self, args, state, control, **kwargs):
            self.steps += 1

    some = Some()
    handler = make(some)
    for event in EVENTS:
        if event not in ("on_step_end", "on_epoch_end"):
            fire(handler, event)
    assert some.steps == 1


def test_a_returned_control_is_passed_on_and_returned():
    other, seen = TrainerControl(should_save=True), []

    class Replaces(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            return other

    class Looks(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            seen.append(control)

    assert fire(make(Replaces, Looks), "on_save") is other
    assert seen == [other]


def test_returning_something_else_is_an_error_that_names_the_callback():
    class Confused(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            return True

    with pytest.raises(TypeError, match=r"Confused\.on_save returned True .*bool"):
        fire(make(Confused), "on_save")


CHANGES = {
    "removes itself": (lambda handler, me, others: handler.remove_callback(me), [1, 1, 1, 0]),
    "removes the next": (lambda handler, me, others: handler.remove_callback(others[1]), [1, 0, 1, 0]),
    "adds in front": (lambda handler, me, others: handler.callbacks.insert(0, others[3]), [1, 1, 1, 0]),
    "adds at the end": (lambda handler, me, others: handler.callbacks.append(others[3]), [1, 1, 1, 1]),
}


@pytest.mark.parametrize(("change", "called"), CHANGES.values(), ids=CHANGES)
def test_the_list_may_change_during_an_event(change, called):
    """A callback is called once if it is there or added behind, and not if it is removed before its turn."""
    others = [Recorder() for _ in range(4)]

    class Changes(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            change(handler, self, others)

    handler = make(others[0], Changes)
    handler.callbacks += others[1:3]
    fire(handler, "on_train_begin")
    assert [len(one.seen) for one in others] == called


def test_events_of_ones_own_can_be_called_and_misspelt_ones_are_refused():
    class Own(TrainerCallback):
        called = False

        def on_my_event(self, args, state, control, **kwargs):
            self.called = kwargs["value"] == 3

    handler = make(Own, Recorder)
    handler.call_event("on_my_event", ARGS, TrainerState(), TrainerControl(), value=3)
    assert handler.callbacks[1].called
    with pytest.raises(AttributeError, match=r"'on_step_ends'.*Did you mean 'on_step_end'\?.*DefaultFlowCallback, Own"):
        handler.call_event("on_step_ends", ARGS, TrainerState(), TrainerControl())


def test_pop_and_remove_take_classes_and_instances_as_the_reference_does():
    printer, progress = PrinterCallback(), ProgressCallback()
    handler = make(printer, progress)
    assert handler.callback_list == "DefaultFlowCallback\nPrinterCallback\nProgressCallback"
    assert handler.pop_callback(progress) is progress
    assert handler.pop_callback(progress) is None
    assert handler.pop_callback(PrinterCallback) is printer
    assert handler.remove_callback(PrinterCallback) is None
    handler.remove_callback(TrainerCallback)
    assert handler.callbacks == []


def test_removing_an_instance_that_is_not_there_says_what_is():
    with pytest.raises(
        ValueError, match=r"a PrinterCallback that is not among .*DefaultFlowCallback, ProgressCallback"
    ):
        make(ProgressCallback).remove_callback(PrinterCallback())


def test_a_second_one_of_a_class_is_added_with_a_warning(caplog):
    handler = make(PrinterCallback)
    with caplog.at_level(logging.WARNING, "lightrainer"):
        handler.add_callback(PrinterCallback())
    assert len(handler.callbacks) == 3
    assert "already one PrinterCallback" in caplog.text
    assert "DefaultFlowCallback, PrinterCallback" in caplog.text


def test_a_handler_without_flow_warns_and_one_with_a_flow_does_not(caplog):
    make()
    assert caplog.text == ""
    CallbackHandler([PrinterCallback], None, None, None, None)
    assert "no DefaultFlowCallback" in caplog.text


@pytest.mark.parametrize("wrong", ["tensorboard", None, 3, lambda trainer: None])
def test_what_is_no_callback_is_refused(wrong):
    with pytest.raises(TypeError, match="is not a callback: it has none of the events"):
        make(wrong)


def test_a_callback_of_lightning_is_refused_with_the_way_to_pass_it():
    from lightning.pytorch.callbacks import LearningRateMonitor

    with pytest.raises(TypeError, match=r"LearningRateMonitor is a callback of Lightning.*`callbacks` of the Trainer"):
        make(LearningRateMonitor())


def test_callbacks_of_the_reference_work_in_it():
    class Theirs(reference.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    handler = CallbackHandler([OwnFlow, Theirs], None, None, None, None)
    assert fire(handler, "on_step_end").should_training_stop


def with_method(name, base=ours.TrainerCallback, **more):
    return type(f"Has{name}", (base,), {name: lambda self, *args, **kwargs: None, **more})


MISSPELT = {
    "on_stepend": "on_step_end",
    "on_step_ends": "on_step_end",
    "onStepEnd": "on_step_end",
    "on_train_beginn": "on_train_begin",
    "on_train_start": "on_train_begin",
    "on_epoch_start": "on_epoch_begin",
    "on_batch_end": "on_step_end",
    "on_train_batch_end": "on_step_end",
    "on_evaluation": "on_evaluate",
    "on_evaluate_end": "on_evaluate",
    "on_validation_end": "on_evaluate",
    "on_logs": "on_log",
    "on_saved": "on_save",
    "on_optimiser_step": "on_optimizer_step",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_method_that_is_nearly_an_event_is_warned_of_once(name, caplog):
    kind = with_method(name)
    make(kind)
    make(kind())
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"Has{name}.{name} is never called" in said
    assert f"Did you mean {MISSPELT[name]!r}?" in said


@pytest.mark.parametrize("name", ["on_new_model_uploaded", "on_gpu", "on_tokens_counted", "step_end", "on", "onset"])
def test_methods_of_ones_own_are_not_warned_of(name, caplog):
    make(with_method(name), with_method("on_step_end"))
    assert caplog.text == ""


def test_hooks_of_callbacks_of_both_kinds(caplog):
    from lightning.pytorch.callbacks import Callback

    class Both(ours.TrainerCallback, Callback):
        def on_train_start(self, trainer, pl_module):
            pass

    make(Both)
    assert caplog.text == ""


def test_none_of_the_callbacks_that_come_along_is_warned_of(caplog):
    from lightrainer.callbacks import handler

    for name in ours.__all__:
        kind = getattr(ours, name)
        if isinstance(kind, type) and issubclass(kind, ours.TrainerCallback):
            handler._warn_of_misspelt_events.__wrapped__(kind)
    assert caplog.text == ""
