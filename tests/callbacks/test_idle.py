"""Events that a callback does not override are not called; whatever overrides them, at any time, is."""

from unittest.mock import MagicMock

import pytest

from lightrainer.callbacks import CallbackHandler, DefaultFlowCallback, TrainerCallback, TrainerControl, TrainerState


def handler(*callbacks):
    return CallbackHandler([DefaultFlowCallback(), *callbacks], None, None, None, None)


def call(of, event="on_step_begin"):
    return of.call_event(event, None, TrainerState(), TrainerControl())


def test_a_wrong_signature_is_an_error_although_the_body_is_empty():
    narrow = type("Narrow", (TrainerCallback,), {"on_step_begin": lambda self, args, state, control: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'model'"):
        call(handler(narrow()))


@pytest.mark.parametrize("where", ["object", "class"])
def test_a_method_that_is_put_in_place_later_is_called(where):
    """Before or after the event was called for the first time."""
    cls = type("Empty", (TrainerCallback,), {"on_step_begin": TrainerCallback.on_step_begin})
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
