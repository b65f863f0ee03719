"""Events that do nothing are not called, and nobody can tell; those that do anything at all are."""

import time
from unittest.mock import MagicMock

import pytest

from lightrainer.callbacks import CallbackHandler, DefaultFlowCallback, TrainerCallback, TrainerControl, TrainerState
from lightrainer.callbacks.handler import is_empty

EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")


def passing(self, args, state, control, **kwargs):
    pass


def documented(self, args, state, control, **kwargs):
    """Say what it is for."""


def dots(self, args, state, control, model=None, *, logs=None, **kwargs): ...


def returning(self, args, state, control, **kwargs):
    return None


def answering(self, args, state, control, **kwargs):
    return control


def constant(self, args, state, control, **kwargs):
    return 1


def calling(self, args, state, control, **kwargs):
    print()


def narrow(self, args, state, control):
    pass


def needing(self, args, state, control, metrics, **kwargs):
    pass


def yielding(self, args, state, control, **kwargs):
    return
    yield


@pytest.mark.parametrize("function", [passing, documented, dots, returning])
def test_what_is_empty(function):
    assert is_empty(function)


BUSY = [answering, constant, calling, narrow, needing, yielding, print, MagicMock(), None]


@pytest.mark.parametrize("function", BUSY)
def test_what_is_not(function):
    """It returns or does something, or is an error to call, which has to be seen."""
    assert not is_empty(function)


def handler(*callbacks):
    return CallbackHandler([DefaultFlowCallback(), *callbacks], None, None, None, None)


def call(of, event="on_step_begin"):
    return of.call_event(event, None, TrainerState(), TrainerControl())


def test_a_wrong_signature_is_an_error_although_the_body_is_empty():
    with pytest.raises(TypeError, match="unexpected keyword argument 'model'"):
        call(handler(type("Narrow", (TrainerCallback,), {"on_step_begin": narrow})()))


@pytest.mark.parametrize("where", ["object", "class"])
def test_a_method_that_is_put_in_place_later_is_called(where):
    """Before or after the event was called for the first time."""
    cls = type("Empty", (TrainerCallback,), {"on_step_begin": passing})
    one, heard = cls(), []
    of = handler(one)
    call(of)
    if where == "object":
        one.on_step_begin = lambda *args, **kwargs: heard.append(kwargs)
    else:
        cls.on_step_begin = lambda self, *args, **kwargs: heard.append(kwargs)
    call(of)
    assert len(heard) == 1
    one.on_step_begin = MagicMock(return_value=None)
    call(of)
    one.on_step_begin.assert_called_once()


def test_call_event_can_be_replaced():
    """As libraries do."""
    of, heard = handler(), []
    of.call_event = lambda event, *args, **kwargs: heard.append(event)
    of.on_step_begin(None, TrainerState(), TrainerControl())
    assert heard == ["on_step_begin"]


def test_a_callback_that_does_nothing_costs_under_2_us_a_step():
    """Whether it overrides nothing or leaves its events empty; over ten callbacks, in the quickest of many rounds.

    Other programs only ever add time, so rounds are measured until one is quick enough, or there were many.
    """
    empty = type("Empty", (TrainerCallback,), dict.fromkeys(EVENTS, passing))
    for cls in (TrainerCallback, empty):
        assert any(cost_of(cls) < 2e-6 for _ in range(40))


def test_the_time_is_measured():
    """Negative control: a callback that does something takes longer than that."""

    def slow(self, args, state, control, **kwargs):
        sum(range(300))

    assert min(cost_of(type("Slow", (TrainerCallback,), {"on_step_end": slow})) for _ in range(3)) > 2e-6


def cost_of(cls):
    """Processor time that a callback adds to the events of a step, in seconds."""

    def seconds(callbacks):
        of, state, control = handler(), TrainerState(max_steps=10**9), TrainerControl()
        of.callbacks[:] = callbacks
        calls = [getattr(of, event) for event in EVENTS]
        begin = time.thread_time()
        for _ in range(500):
            for each in calls:
                control = each(None, state, control)
        return (time.thread_time() - begin) / 500

    return (seconds([cls() for _ in range(10)]) - seconds([])) / 10
