"""Which callback has set a switch of the control."""

from __future__ import annotations

from typing import NamedTuple

from .flow import DefaultFlowCallback
from .state import TrainerControl

SWITCHES = tuple(TrainerControl().state()["args"])
"""The switches of the control that callbacks set."""


class _Setter(NamedTuple):
    """A callback that has set a switch."""

    callback: type | None
    """None where the switch was set outside of callbacks."""
    event: str


class SwitchSetters:
    """Notes the callback that has set each switch of the control, as the handler calls one after
    the other.
    """

    def __init__(self) -> None:
        self._setters: dict[str, _Setter] = {}

    def note(self, control: TrainerControl, callback: type | None, event: str) -> None:
        """Note the switches that are set now, and were not at the last call; forget those that are
        not set.

        Args:
            control: the switches.
            callback: the class of the callback that has just been called; None where none has.
            event: the event that it was called for.
        """
        set_now = [switch for switch in SWITCHES if getattr(control, switch)]
        if not set_now and not self._setters:
            return
        setters = {}
        for switch in set_now:
            setters[switch] = self._setters.get(switch, _Setter(callback, event))
        self._setters = setters

    def is_by_arguments(self, switch: str) -> bool:
        """Return whether a switch was set by `DefaultFlowCallback`, for the arguments and the
        number of the step.
        """
        setter = self._setters.get(switch)
        return setter is not None and setter.callback is DefaultFlowCallback

    def name(self, switch: str) -> str | None:
        """Return `MyCallback.on_step_end` for the callback that has set a switch; None where it
        was none.
        """
        setter = self._setters.get(switch)
        if setter is None or setter.callback is None:
            return None
        return f"{setter.callback.__name__}.{setter.event}"
