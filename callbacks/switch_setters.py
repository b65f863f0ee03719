"""Which callback has set a switch of the control."""

from __future__ import annotations

from .flow import DefaultFlowCallback
from .state import TrainerControl

SWITCHES = tuple(TrainerControl().state()["args"])
"""The switches of the control that callbacks set."""


class SwitchSetters:
    """Notes the callback that has set each switch of the control, as the handler calls one after the other."""

    def __init__(self) -> None:
        self._setters: dict[str, tuple[type | None, str]] = {}

    def note(self, control: TrainerControl, callback: type | None, event: str) -> None:
        """Note the switches that are set now, and were not at the last call; forget those that are not set.

        Args:
            control: the switches.
            callback: the class of the callback that has just been called; None where none has.
            event: the event that it was called for.
        """
        setters = self._setters
        is_set = [getattr(control, switch) for switch in SWITCHES]
        if not setters and True not in is_set:
            return
        for switch, value in zip(SWITCHES, is_set, strict=True):
            if not value:
                setters.pop(switch, None)
            else:
                setters.setdefault(switch, (callback, event))

    def is_by_arguments(self, switch: str) -> bool:
        """Return whether a switch was set by `DefaultFlowCallback`, for the arguments and the number of the step."""
        return self._setters.get(switch, (None, ""))[0] is DefaultFlowCallback

    def name(self, switch: str) -> str | None:
        """Return `MyCallback.on_step_end` for the callback that has set a switch; None where it was none."""
        callback, event = self._setters.get(switch, (None, ""))
        return None if callback is None else f"{callback.__name__}.{event}"
