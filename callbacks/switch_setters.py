"""Record which callback has set a switch of the control."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from .flow import DefaultFlowCallback
from .state import TrainerControl

SWITCHES = tuple(TrainerControl().state()["args"])
"""The switches of the control that callbacks set."""
_values = attrgetter(*SWITCHES)
"""Returns the values of all switches of a control."""


class _Setter(NamedTuple):
    """A callback that has set a switch."""

    callback: type | None
    """None if the switch was set outside of callbacks."""
    event: str


class SwitchSetters:
    """Records the callback that has set each switch of the control."""

    def __init__(self) -> None:
        self._setters: dict[str, _Setter] = {}

    def note(self, control: TrainerControl, callback: type | None, event: str) -> None:
        """Record the callback for the switches that it has set; the handler calls this after each.

        Switches that were set before keep their callback, switches that were reset are removed.

        Args:
            control: the switches.
            callback: the class of the callback that has just been called; None before the first.
            event: the event that is being fired.
        """
        # Most calls end here: no switch is set, and none was.
        if not any(_values(control)) and not self._setters:
            return
        new_setter = _Setter(callback, event)
        self._setters = {
            switch: self._setters.get(switch, new_setter)
            for switch in SWITCHES
            if getattr(control, switch)
        }

    def is_by_arguments(self, switch: str) -> bool:
        """Return whether `DefaultFlowCallback` has set a switch, which follows the arguments."""
        setter = self._setters.get(switch)
        return setter is not None and setter.callback is DefaultFlowCallback

    def name(self, switch: str) -> str | None:
        """Return the callback that has set a switch, as `MyCallback.on_step_end`.

        None if no callback has.
        """
        setter = self._setters.get(switch)
        if setter is None or setter.callback is None:
            return None
        return f"{setter.callback.__name__}.{setter.event}"
