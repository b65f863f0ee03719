"""The callback handler, which calls the events of all callbacks."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from ..lightning_modules.common.suggestions import did_you_mean
from .base import EVENTS, TrainerCallback
from .flow import DefaultFlowCallback
from .state import TrainerControl, TrainerState
from .switch_setters import SwitchSetters

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..facade import TrainingArguments

logger = logging.getLogger(__name__)

ForwardedEvent: TypeAlias = "Callable[..., TrainerControl]"
"""An event of the handler; it returns the last control, while a callback may return None."""

_EVENTS = frozenset(EVENTS)
_NOT_OVERRIDDEN = {getattr(TrainerCallback, event) for event in EVENTS}


def _forwarded(event: str, *switches_to_reset: str) -> ForwardedEvent:
    """Return a method that resets switches of the control, and then calls an event."""

    def forward(
        self: CallbackHandler,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        for switch in switches_to_reset:
            setattr(control, switch, False)
        return self.call_event(event, args, state, control, **kwargs)

    forward.__name__ = event
    forward.__doc__ = "Forward the event."
    return forward


class CallbackHandler(TrainerCallback):
    """Call the events of all callbacks, in the order in which they were added.

    Works like `transformers.CallbackHandler`, but events that a callback does not override are
    skipped.

    All events go through `call_event`. The attributes can be replaced at any time, and callbacks
    may be appended to `callbacks`.

    Args:
        callbacks: instances, or classes that can be constructed without arguments. Any object with
            a method for at least one event is accepted, also if it is not a `TrainerCallback`.
        model: passed to every event, as are the next three.
        processing_class: the tokenizer or other processor.
        optimizer: may be `None` until training begins.
        lr_scheduler: may be `None` until training begins.

    Attributes:
        train_dataloader: passed to every event.
        eval_dataloader: passed to every event.
        final_listeners: methods of the Trainer by event, which are called after all callbacks.
        switch_setters: records which callback sets a switch of the control; `None` for no record.
    """

    switch_setters: SwitchSetters | None = None

    def __init__(
        self,
        callbacks: Iterable[Any],
        model: nn.Module | None,
        processing_class: object,
        optimizer: Optimizer | None,
        lr_scheduler: object,
    ) -> None:
        self.callbacks: list[Any] = []
        self.final_listeners: dict[str, Callable[..., object]] = {}
        for callback in callbacks:
            self.add_callback(callback)

        # The objects that events are called with.
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: object = None
        self.eval_dataloader: object = None

        if not any(isinstance(callback, DefaultFlowCallback) for callback in self.callbacks):
            logger.warning(
                "DefaultFlowCallback is missing: the logging, evaluation and save intervals have "
                "no effect unless another callback applies them. The callbacks are: %s",
                self._names(),
            )

    def add_callback(self, callback: Any) -> None:
        """Append a callback, or an instance of a callback class.

        Warns if a callback of the same class is present, and about methods whose names look like
        misspelt events.

        Args:
            callback: the callback, or a class that is made without arguments.

        Raises:
            TypeError: it has none of the events, or it is a callback of Lightning.
        """
        new_callback: object = callback() if isinstance(callback, type) else callback
        _check_is_callback(new_callback)
        _warn_of_misspelt_events(type(new_callback))

        if any(type(present) is type(new_callback) for present in self.callbacks):
            logger.warning(
                "There is already one %s: both will be called. The callbacks are: %s",
                type(new_callback),
                self._names(),
            )

        # A callback that adds to the logs is called before those that only read them.
        position = len(self.callbacks)
        if getattr(new_callback, "adds_to_logs", False):
            position = self._first_reader_of_logs()
        self.callbacks.insert(position, new_callback)

    def pop_callback(self, callback: Any) -> Any | None:
        """Remove a callback, and return it.

        Args:
            callback: the callback, or its class: then the first of that class or of a subclass.

        Returns:
            The callback that was removed, or None if it is not in the list.
        """
        for index, present in enumerate(self.callbacks):
            if isinstance(callback, type):
                is_match = isinstance(present, callback)
            else:
                is_match = present == callback
            if is_match:
                return self.callbacks.pop(index)
        return None

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback.

        A default callback can be removed by its class, without asking whether it is used.

        Args:
            callback: the callback, or its class: then the first of that class or of a subclass, if
                there is one.

        Raises:
            ValueError: this instance is not in the list.
        """
        removed = self.pop_callback(callback)
        if removed is None and not isinstance(callback, type):
            raise ValueError(
                f"{callback!r} is not among the callbacks: {self._names()}. Pass one of them, or "
                "its class."
            )

    @property
    def callback_list(self) -> str:
        """The class names of the callbacks, one per line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def call_event(
        self,
        event: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        """Call `event` on each callback that overrides it, in order, and return the last control.

        A callback that another one adds during the event is called too; one that is removed before
        its turn is not.

        Args:
            event: name of the event, such as "on_save".
            args: the training arguments.
            state: the state of the training.
            control: the control, which callbacks change in place or replace.
            kwargs: further arguments of the event, such as `metrics` or `logs`.

        Raises:
            AttributeError: `event` is not one of the events, and no callback defines it.
            TypeError: a callback returned something other than a control or `None`; at the end of
                a training this is a warning.
        """
        if event not in _EVENTS:
            self._check_is_defined(event)
        if self.switch_setters is not None:
            self.switch_setters.note(control, None, event)

        callbacks = self.callbacks
        index = 0
        while index < len(callbacks):
            callback: object = callbacks[index]

            # Events that are inherited unchanged do nothing.
            method = getattr(callback, event, None)
            if method is None or getattr(method, "__func__", None) in _NOT_OVERRIDDEN:
                index += 1
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
            if hasattr(returned, "should_training_stop"):
                control = returned
            elif returned is not None:
                message = (
                    f"{type(callback).__name__}.{event} returned {returned!r}, which is not a "
                    "TrainerControl. Return the control, or None to keep it."
                )
                # Nothing reads the control after the end, where an error would lose the model.
                if event != "on_train_end":
                    raise TypeError(message)
                logger.warning(message)
            if self.switch_setters is not None:
                self.switch_setters.note(control, type(callback), event)

            # The callback may have added or removed callbacks, itself included.
            is_in_place = index < len(callbacks) and callbacks[index] is callback
            index = index + 1 if is_in_place else _index_after_change(callback, index, callbacks)

        if event in self.final_listeners:
            self.final_listeners[event](args, state, control)
        return control

    # The events without additional values.
    on_init_end: ForwardedEvent = _forwarded("on_init_end")
    on_train_begin: ForwardedEvent = _forwarded("on_train_begin", "should_training_stop")
    on_train_end: ForwardedEvent = _forwarded("on_train_end")
    on_epoch_begin: ForwardedEvent = _forwarded("on_epoch_begin", "should_epoch_stop")
    on_epoch_end: ForwardedEvent = _forwarded("on_epoch_end")
    on_step_begin: ForwardedEvent = _forwarded(
        "on_step_begin", "should_log", "should_evaluate", "should_save"
    )
    on_pre_optimizer_step: ForwardedEvent = _forwarded("on_pre_optimizer_step")
    on_optimizer_step: ForwardedEvent = _forwarded("on_optimizer_step")
    on_substep_end: ForwardedEvent = _forwarded("on_substep_end")
    on_step_end: ForwardedEvent = _forwarded("on_step_end")
    on_prediction_step: ForwardedEvent = _forwarded("on_prediction_step")
    on_save: ForwardedEvent = _forwarded("on_save", "should_save")
    on_push_begin: ForwardedEvent = _forwarded("on_push_begin")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Reset `should_evaluate` and forward the event with the `metrics`."""
        control.should_evaluate = False
        return self.call_event("on_evaluate", args, state, control, metrics=metrics, **kwargs)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> TrainerControl:
        """Forward the event with the `metrics`."""
        return self.call_event("on_predict", args, state, control, metrics=metrics, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Reset `should_log` and forward the event with the `logs`."""
        control.should_log = False
        return self.call_event("on_log", args, state, control, logs=logs, **kwargs)

    def _names(self) -> str:
        names = [type(callback).__name__ for callback in self.callbacks]
        return ", ".join(names) or "none"

    def _first_reader_of_logs(self) -> int:
        """Return the index of the first callback that only reads logs, otherwise the end."""
        for index, callback in enumerate(self.callbacks):
            on_log = getattr(getattr(callback, "on_log", None), "__func__", None)
            is_overridden = on_log is not None and on_log is not TrainerCallback.on_log
            if is_overridden and not getattr(callback, "adds_to_logs", False):
                return index
        return len(self.callbacks)

    def _check_is_defined(self, event: str) -> None:
        if not any(hasattr(callback, event) for callback in self.callbacks):
            raise AttributeError(
                f"No callback defines the event {event!r}.{did_you_mean(event, EVENTS)}"
            )


def _index_after_change(callback: object, index: int, callbacks: list[Any]) -> int:
    """Return the index of the callback to call next, after `callback` has changed the list.

    Args:
        callback: the callback that was called.
        index: its index before the call.
        callbacks: the list after the call.
    """
    new_indices = [i for i, present in enumerate(callbacks) if present is callback]
    if new_indices:
        return new_indices[-1] + 1
    # It has removed itself, so the next callback has moved to its index.
    return index


def _check_is_callback(candidate: object) -> None:
    """Raise `TypeError` for objects whose events could not be called.

    These are callbacks of Lightning, whose hooks have other arguments, and objects without events.
    """
    if isinstance(candidate, TrainerCallback):
        return

    # Looked up in sys.modules, so that Lightning is not imported.
    for package in ("lightning.pytorch", "pytorch_lightning"):
        lightning_callback = getattr(sys.modules.get(package), "Callback", None)
        if lightning_callback is not None and isinstance(candidate, lightning_callback):
            raise TypeError(
                f"{type(candidate).__name__} is a callback of Lightning: pass it in `callbacks` of "
                "the Trainer."
            )

    if not any(hasattr(candidate, event) for event in EVENTS):
        raise TypeError(
            f"{candidate!r} is not a callback: it has none of the events {', '.join(EVENTS)}."
        )


@functools.lru_cache(maxsize=256)  # one warning for each class
def _warn_of_misspelt_events(callback_class: type) -> None:
    """Warn about methods whose names look like misspelt events, as these are never called."""
    for base in callback_class.__mro__:
        if base.__name__ == "Callback" and "lightning" in base.__module__:
            return  # its other `on_` methods may be hooks of Lightning

    for name in dir(callback_class):
        if name in _EVENTS or not name.startswith("on"):
            continue
        event = _event_like(name)
        if event is not None:
            logger.warning(
                "%s.%s is never called: it is not an event. Did you mean %r? If it is not meant to "
                "be an event, give it a name that does not begin with 'on_'.",
                callback_class.__name__,
                name,
                event,
            )


_SYNONYMS = (
    ("train_epoch", "epoch"),
    ("train_batch", "step"),
    ("batch", "step"),
    ("start", "begin"),
    ("validation", "evaluate"),
    ("evaluation", "evaluate"),
)
"""Words in the event names of other libraries, each with the one that is used here."""


def _event_like(name: str) -> str | None:
    """Return the event whose name is close to `name`; `None` if no name is."""
    translated = name.lower()
    for foreign_word, our_word in _SYNONYMS:
        translated = translated.replace(foreign_word, our_word)
    events = {event.replace("_", ""): event for event in EVENTS}
    matches = get_close_matches(translated.replace("_", ""), events, n=1, cutoff=0.8)
    return events[matches[0]] if matches else None
