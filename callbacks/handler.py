"""The callback handler, which calls the events of all callbacks."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from types import FunctionType
from typing import Any

from ..lightning_modules.common.suggestions import did_you_mean
from .base import EVENTS, TrainerCallback
from .flow import DefaultFlowCallback
from .state import TrainerControl, TrainerState
from .switch_setters import SwitchSetters

logger = logging.getLogger(__name__)

_EVENTS = frozenset(EVENTS)
_NOT_OVERRIDDEN = {getattr(TrainerCallback, event) for event in EVENTS}


def _forwarded(event: str, *cleared: str) -> Any:
    """Return a method of the handler that clears switches of the control and forwards an event
    to all callbacks.
    """

    def forward(
        self: Any, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        for switch in cleared:
            setattr(control, switch, False)
        return self.call_event(event, args, state, control, **kwargs)

    forward.__name__ = event
    forward.__doc__ = "Forward the event."
    return forward


class CallbackHandler(TrainerCallback):
    """As `transformers.CallbackHandler`, but events that a callback does not override are not
    called.

    Args:
        callbacks: instances, or classes that can be constructed without arguments. An object that
            is no `TrainerCallback` but has some of its events may be given, too.
        model: passed to every event, as are the next three.
        processing_class: the tokenizer or other processor.
        optimizer: may be `None` until training begins.
        lr_scheduler: may be `None` until training begins.

    All of these are attributes that can be replaced at any time, as are `train_dataloader` and
    `eval_dataloader`; callbacks may also be appended to `callbacks`. All events go through
    `call_event`. `unlisted` maps events to methods of the Trainer itself, which are called after
    the callbacks. `setters`, where there is one, notes which callback sets a switch of the control.
    """

    setters: SwitchSetters | None = None

    def __init__(
        self,
        callbacks: Iterable[Any],
        model: Any,
        processing_class: Any,
        optimizer: Any,
        lr_scheduler: Any,
    ) -> None:
        self.callbacks: list[Any] = []
        self.unlisted: dict[str, Any] = {}
        for callback in callbacks:
            self.add_callback(callback)
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None
        if not any(isinstance(cb, DefaultFlowCallback) for cb in self.callbacks):
            logger.warning(
                "DefaultFlowCallback is missing: the logging, evaluation and save intervals have "
                "no effect unless another callback applies them. The callbacks are: %s",
                self._names(),
            )

    def add_callback(self, callback: Any) -> None:
        """Append a callback, or an instance of a callback class.

        Warns if there is one of the same class already, and of a method whose name is nearly that
        of an event.

        Raises:
            TypeError: it has none of the events, or it is a callback of Lightning.
        """
        added = callback() if isinstance(callback, type) else callback
        _check_is_callback(added)
        _warn_of_misspelt_events(type(added))
        if any(type(present) is type(added) for present in self.callbacks):
            logger.warning(
                "There is already one %s: both will be called. There were: %s",
                type(added),
                self._names(),
            )
        replaced = getattr(added, "takes_place_of", ())
        self.callbacks[:] = [
            present for present in self.callbacks if not isinstance(present, replaced)
        ]
        place = (
            self._first_reader_of_logs()
            if getattr(added, "adds_to_logs", False)
            else len(self.callbacks)
        )
        self.callbacks.insert(place, added)

    def pop_callback(self, callback: Any) -> Any | None:
        """Remove a callback and return it; `None` if it is not in the list.

        A class stands for the first callback of that class or of a subclass.
        """
        for index, present in enumerate(self.callbacks):
            if isinstance(present, callback) if isinstance(callback, type) else present == callback:
                return self.callbacks.pop(index)
        return None

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback.

        A class stands for the first callback of that class or of a subclass; without one nothing
        happens, so that a default callback can be removed without asking whether it is in use.

        Raises:
            ValueError: this instance is not in the list.
        """
        if self.pop_callback(callback) is None and not isinstance(callback, type):
            raise ValueError(
                f"{callback!r} is not among the callbacks: {self._names()}. Pass one of them, or "
                "its class."
            )

    @property
    def callback_list(self) -> str:
        """The class names of the callbacks, one per line."""
        return "\n".join(type(cb).__name__ for cb in self.callbacks)

    def call_event(
        self, event: str, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call `event` on each callback that overrides it, in order, and return the last control.

        A callback added meanwhile is called as well; one removed meanwhile is not.

        Raises:
            AttributeError: neither is `event` one of the events nor does any callback define it.
            TypeError: a callback returned something other than a control or `None`.
        """
        if event not in _EVENTS:
            self._check_is_defined(event)
        if self.setters is not None:
            self.setters.note(control, None, event)
        callbacks = self.callbacks
        start = 0
        while True:
            for index, callback in enumerate(islice(callbacks, start, None), start):
                method = getattr(callback, event, None)
                if method is None or getattr(method, "__func__", None) in _NOT_OVERRIDDEN:
                    continue
                returned = method(
                    args,
                    state,
                    control,
                    model=self.model,
                    processing_class=self.processing_class,
                    optimizer=self.optimizer,
                    lr_scheduler=self.lr_scheduler,
                    train_dataloader=self.train_dataloader,
                    eval_dataloader=self.eval_dataloader,
                    **kwargs,
                )
                if returned is not None:
                    if not hasattr(returned, "should_training_stop"):
                        raise TypeError(
                            f"{type(callback).__name__}.{event} returned {returned!r}, not the "
                            "control or None."
                        )
                    control = returned
                if self.setters is not None:
                    self.setters.note(control, type(callback), event)
                # it has changed the list
                if index >= len(callbacks) or callbacks[index] is not callback:
                    start = _index_after(callback, index, callbacks)
                    break
            else:
                if event in self.unlisted:
                    self.unlisted[event](args, state, control)
                return control

    # Typed as returning a control, which the methods of a callback need not.
    on_init_end: Any = _forwarded("on_init_end")
    on_train_begin: Any = _forwarded("on_train_begin", "should_training_stop")
    on_train_end: Any = _forwarded("on_train_end")
    on_epoch_begin: Any = _forwarded("on_epoch_begin", "should_epoch_stop")
    on_epoch_end: Any = _forwarded("on_epoch_end")
    on_step_begin: Any = _forwarded("on_step_begin", "should_log", "should_evaluate", "should_save")
    on_pre_optimizer_step: Any = _forwarded("on_pre_optimizer_step")
    on_optimizer_step: Any = _forwarded("on_optimizer_step")
    on_substep_end: Any = _forwarded("on_substep_end")
    on_step_end: Any = _forwarded("on_step_end")
    on_prediction_step: Any = _forwarded("on_prediction_step")
    on_save: Any = _forwarded("on_save", "should_save")
    on_push_begin: Any = _forwarded("on_push_begin")

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Clear `should_evaluate` and forward the event with the `metrics`."""
        control.should_evaluate = False
        return self.call_event("on_evaluate", args, state, control, metrics=metrics, **kwargs)

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> TrainerControl:
        """Forward the event with the `metrics`."""
        return self.call_event("on_predict", args, state, control, metrics=metrics, **kwargs)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Clear `should_log` and forward the event with the `logs`."""
        control.should_log = False
        return self.call_event("on_log", args, state, control, logs=logs, **kwargs)

    def _names(self) -> str:
        return ", ".join(type(cb).__name__ for cb in self.callbacks) or "none"

    def _first_reader_of_logs(self) -> int:
        """Return the index before all callbacks that read the logs, for one that adds to them."""
        for index, present in enumerate(self.callbacks):
            function = getattr(getattr(present, "on_log", None), "__func__", None)
            reads = function is not None and function is not TrainerCallback.on_log
            if reads and not getattr(present, "adds_to_logs", False):
                return index
        return len(self.callbacks)

    def _check_is_defined(self, event: str) -> None:
        if not any(hasattr(cb, event) for cb in self.callbacks):
            raise AttributeError(
                f"No callback defines the event {event!r}.{did_you_mean(event, EVENTS)}"
            )


def _index_after(callback: Any, index: int, callbacks: list[Any]) -> int:
    """Return the next index after `callback`, called at `index`, which may have changed the
    list.
    """
    if index < len(callbacks) and callbacks[index] is callback:
        return index + 1
    moved = [place for place, present in enumerate(callbacks) if present is callback]
    return moved[-1] + 1 if moved else index  # one that removed itself has made room for the next


def _check_is_callback(candidate: Any) -> None:
    """Refuse objects that could never be called, or would be called with the wrong arguments."""
    if isinstance(candidate, TrainerCallback):
        return
    for package in ("lightning.pytorch", "pytorch_lightning"):
        theirs = getattr(sys.modules.get(package), "Callback", None)
        if theirs is not None and isinstance(candidate, theirs):
            raise TypeError(
                f"{type(candidate).__name__} is a callback of Lightning: pass it in `callbacks` of "
                "the Trainer."
            )
    if not any(hasattr(candidate, event) for event in EVENTS):
        raise TypeError(
            f"{candidate!r} is not a callback: it has none of the events {', '.join(EVENTS)}."
        )


@functools.lru_cache(maxsize=256)  # once for each class
def _warn_of_misspelt_events(kind: type) -> None:
    """Warn of methods that look like misspelt events and are never called."""
    if any("lightning" in base.__module__ and base.__name__ == "Callback" for base in kind.__mro__):
        return  # its other `on_` methods may be hooks of Lightning
    own = [base for base in kind.__mro__ if base not in (TrainerCallback, object)]
    methods = [
        name for base in own for name, part in vars(base).items() if isinstance(part, FunctionType)
    ]
    for name in dict.fromkeys(methods):
        near = None if name in _EVENTS else _event_like(name)
        if near is not None and name.startswith("on"):
            logger.warning(
                "%s.%s is never called: it is not an event. Did you mean %r? If it is a method of "
                "your own, give it a name that does not begin with 'on_'.",
                kind.__name__,
                name,
                near,
            )


_OTHER_WORDS = (
    ("train_epoch", "epoch"),
    ("train_batch", "step"),
    ("batch", "step"),
    ("start", "begin"),
    ("validation", "evaluate"),
    ("evaluation", "evaluate"),
)
"""Words of other libraries, each with its equivalent here."""


def _event_like(name: str) -> str | None:
    """Return the event that has nearly this name; None where none has."""
    written = name.lower()
    for other, ours in _OTHER_WORDS:
        written = written.replace(other, ours)
    known = {event.replace("_", ""): event for event in EVENTS}
    near = get_close_matches(written.replace("_", ""), known, n=1, cutoff=0.8)
    return known[near[0]] if near else None
