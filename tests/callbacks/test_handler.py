"""The handler: one funnel for all events, cheap where nothing is to be done."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from lightning.pytorch.callbacks import LearningRateMonitor
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
    return CallbackHandler(
        [DefaultFlowCallback, *callbacks], "model", "tokenizer", "optimizer", "scheduler"
    )


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
        handler = module.CallbackHandler(
            [flow(), recorder], "model", "tokenizer", "optimizer", "scheduler"
        )
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
def test_handler_replaced_call_event_sees_every_event(event):
    handler, events = make(), []
    original = handler.call_event
    handler.call_event = lambda name, *args, **kwargs: (
        events.append(name),
        original(name, *args, **kwargs),
    )[1]
    handler.callbacks[:] = []
    assert isinstance(fire(handler, event), TrainerControl)
    assert events == [event]


def test_events_put_in_place_later_are_called(monkeypatch):
    """On a class, on the base class and on an instance, before or after the event was called for
    the first time.
    """
    callback, calls = TrainerCallback(), []
    handler = make(callback)
    fire(handler, "on_step_begin")
    monkeypatch.setattr(
        DefaultFlowCallback, "on_step_begin", lambda self, *a, **k: calls.append("class")
    )
    monkeypatch.setattr(
        TrainerCallback, "on_substep_end", lambda self, *a, **k: calls.append("base")
    )
    callback.on_save = lambda *args, **kwargs: calls.append(kwargs["model"])
    callback.on_step_begin = MagicMock(return_value=None)
    for event in ("on_step_begin", "on_substep_end", "on_save"):
        fire(handler, event)
    assert calls == ["class", "base", "base", "model"]
    callback.on_step_begin.assert_called_once()


def test_handler_passes_on_a_returned_control():
    """Something else is an error that names the callback."""
    other, controls = TrainerControl(should_save=True), []
    replaces, looks = (
        SimpleNamespace(on_save=hook)
        for hook in (
            lambda *args, **kwargs: other,
            lambda args, state, control, **kwargs: controls.append(control),
        )
    )
    assert fire(make(replaces, looks), "on_save") is other
    assert controls == [other]
    confused = type("Confused", (TrainerCallback,), {"on_save": lambda *args, **kwargs: True})
    with pytest.raises(TypeError, match=r"Confused\.on_save .*True"):
        fire(make(confused), "on_save")


def test_handler_warns_of_another_result_at_the_end_of_a_training(caplog):
    """As in transformers the training ends well: its model must not be lost."""
    confused = type("Confused", (TrainerCallback,), {"on_train_end": lambda *_, **__: True})
    controls = []
    looks = SimpleNamespace(on_train_end=lambda args, state, control, **_: controls.append(control))
    control = fire(make(confused, looks), "on_train_end")
    assert isinstance(control, TrainerControl)
    assert controls == [control]
    assert "Confused.on_train_end returned True" in caplog.text


CHANGES = {
    "removes itself": (lambda handler, me, others: handler.remove_callback(me), [1, 1, 1, 0]),
    "removes the next": (
        lambda handler, me, others: handler.remove_callback(others[1]),
        [1, 0, 1, 0],
    ),
    "adds in front": (
        lambda handler, me, others: handler.callbacks.insert(0, others[3]),
        [1, 1, 1, 0],
    ),
    "adds at the end": (
        lambda handler, me, others: handler.callbacks.append(others[3]),
        [1, 1, 1, 1],
    ),
}


@pytest.mark.parametrize(("change", "called"), CHANGES.values(), ids=CHANGES)
def test_handler_list_may_change_during_an_event(change, called):
    """A callback is called once if it is there or added behind, and not if it is removed before
    its turn.
    """
    others = [Recorder() for _ in range(4)]

    class Changes(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            change(handler, self, others)

    handler = make(others[0], Changes)
    handler.callbacks += others[1:3]
    fire(handler, "on_train_begin")
    assert [len(recorder.seen) for recorder in others] == called


def test_events_of_ones_own_can_be_called_and_misspelt_ones_are_refused():
    class Own(TrainerCallback):
        called = False

        def on_my_event(self, args, state, control, **kwargs):
            self.called = kwargs["value"] == 3

    handler = make(Own, Recorder)
    handler.call_event("on_my_event", ARGS, TrainerState(), TrainerControl(), value=3)
    assert handler.callbacks[1].called
    with pytest.raises(AttributeError, match=r"'on_step_ends'.*Did you mean 'on_step_end'\?"):
        handler.call_event("on_step_ends", ARGS, TrainerState(), TrainerControl())


def test_pop_and_remove_take_classes_and_instances_as_the_reference_does():
    printer, progress = PrinterCallback(), ProgressCallback()
    handler = make(printer, progress)
    assert handler.callback_list == "DefaultFlowCallback\nPrinterCallback\nProgressCallback"
    assert handler.pop_callback(progress) is progress
    assert handler.pop_callback(progress) is None
    assert handler.pop_callback(PrinterCallback) is printer
    assert handler.remove_callback(PrinterCallback) is None
    with pytest.raises(ValueError, match=r"PrinterCallback .*DefaultFlowCallback"):
        handler.remove_callback(printer)
    handler.remove_callback(TrainerCallback)
    assert handler.callbacks == []


def test_callbacks_of_the_reference_work_in_it():
    class Theirs(reference.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    handler = CallbackHandler([OwnFlow, Theirs], None, None, None, None)
    assert fire(handler, "on_step_end").should_training_stop


def test_handler_warns_once_of_a_misspelt_event(caplog):
    """Other methods are the script's own."""
    for name in ("on_stepend", "on_train_batch_end", "on_gpu", "step_end"):
        kind = type("Misspelt", (TrainerCallback,), {name: lambda self, *args, **kwargs: None})
        make(kind)
        make(kind())
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == [
        *("Misspelt.on_stepend", "Misspelt.on_train_batch_end")
    ]
    assert caplog.text.count("Did you mean 'on_step_end'?") == 2


def test_handler_refuses_lightning_callbacks():
    with pytest.raises(
        TypeError,
        match=r"LearningRateMonitor is a callback of Lightning.*`callbacks` of the Trainer",
    ):
        make(LearningRateMonitor())
