"""Handle signals of this process, and share them with the other ranks."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from ._signal_exchange import SignalExchange, world_size

logger = logging.getLogger(__name__)

SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
"""A handler as `signal.signal` accepts and returns it."""

_DEFAULT_HANDLERS: dict[int, SignalHandler] = {signal.SIGINT: signal.default_int_handler}
"""Handlers that Python installs itself; for all other signals it is `SIG_DFL`."""

_INTERRUPTED = b"\nInterrupted. Saving a checkpoint; press Ctrl-C again to stop immediately.\n"

REQUESTED_BY_SCRIPT = 1 << 16
"""Stands for a signal where the user's script has requested a checkpoint.

A number, since ranks exchange it like a signal; larger than all signals.
"""


class SignalListener:
    """Record the first signal that any rank receives, between `start` and `stop`."""

    def __init__(self) -> None:
        self.received_signal: int | None = None
        """The signal that any rank has received, or `REQUESTED_BY_SCRIPT`."""
        self.has_dropped_signal = False
        """True once the user has interrupted the training at once, so that no checkpoint is due."""
        self.writes_to_terminal = True
        """Whether this rank answers the first Ctrl-C on the terminal."""

        self._pid: int | None = None  # a forked process is not listening
        self._previous_handlers: dict[int, SignalHandler] = {}
        self._has_received_sigint = False
        self._exchange: SignalExchange | None = None
        self._on_change: Callable[[bool], None] | None = None

    @property
    def is_started(self) -> bool:
        """Whether this process takes part in the exchange of signals.

        Outside of the main thread it does so without handling any itself.
        """
        return self._pid == os.getpid()

    def start(
        self,
        signals: Iterable[int],
        required_signals: tuple[int, ...],
        on_change: Callable[[bool], None] | None,
    ) -> None:
        """Install the signal handlers.

        Only in the main thread, and only in place of handlers that can be restored. The parameters
        are those of `JITCheckpointCallback`.
        """
        self.has_dropped_signal = False
        self._has_received_sigint = False
        self._on_change = on_change
        level = logging.WARNING if required_signals else logging.DEBUG
        try:
            self._exchange = SignalExchange() if world_size() > 1 else None
        except RuntimeError as error:
            logger.warning(
                "Signals are not handled, since the ranks cannot exchange them over gloo: %s", error
            )
            return

        self._pid = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            logger.log(
                level, "Signals are not handled, since training does not run in the main thread."
            )
            return

        for number in signals:
            handler = signal.getsignal(number)
            # Python does not know handlers that were installed from C, and cannot restore them.
            if handler is None:
                logger.log(
                    level,
                    "%s is not handled: a library has installed its own handler.",
                    signal_name(number),
                )
                continue
            is_ignored = handler == signal.SIG_IGN
            if not is_ignored or number in required_signals:
                self._previous_handlers[number] = signal.signal(number, self._receive)
        self._notify(True)

    def stop(self) -> None:
        """Restore the previous handlers, unless they were replaced since; may be called twice."""
        self._restore_handlers()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def has_signal(self, *, wait: bool = False) -> bool:
        """Return whether any rank has received a signal. All processes must call this.

        All ranks call it at the same places and get the same result.

        Args:
            wait: for the signals that the ranks send now. Otherwise those of the previous call.
        """
        if not self.is_started:
            return False
        if self._exchange is None:
            return self.received_signal is not None

        agreed_signal = self._exchange.exchange(self.received_signal or 0, wait)
        if agreed_signal:
            self.received_signal = agreed_signal
        return agreed_signal > 0

    def has_default_sigint(self) -> bool:
        """Return whether Ctrl-C raises a `KeyboardInterrupt` without this listener."""
        handler = self._previous_handlers.get(signal.SIGINT, signal.default_int_handler)
        return handler is signal.default_int_handler

    def drop_signal(self) -> None:
        """Restore the previous handlers, and forget the signal: no checkpoint is due."""
        self.received_signal = None
        self.has_dropped_signal = True
        self._restore_handlers()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Record the signal, as its handler.

        Nothing else: a handler runs between arbitrary instructions of the training.
        """
        # A forked process, such as a worker of a dataloader, ends as it would without this.
        if not self.is_started:
            default_handler = _DEFAULT_HANDLERS.get(number, signal.SIG_DFL)
            signal.signal(number, self._previous_handlers.get(number, default_handler))
            signal.raise_signal(number)
            return

        # The second Ctrl-C.
        if number == signal.SIGINT and self._has_received_sigint:
            self.drop_signal()
            signal.raise_signal(number)
            return

        if self.received_signal is None:
            self.received_signal = number
        if number == signal.SIGINT:
            self._has_received_sigint = True
            if self.writes_to_terminal and logger.isEnabledFor(logging.WARNING):
                # To file descriptor 2, since the handler may have interrupted a write to
                # `sys.stderr`.
                with contextlib.suppress(OSError):
                    os.write(2, _INTERRUPTED)

    def _restore_handlers(self) -> None:
        self._pid = None
        previous_handlers = self._previous_handlers
        self._previous_handlers = {}
        for number, handler in previous_handlers.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
        if previous_handlers:
            self._notify(False)

    def _notify(self, is_handling: bool) -> None:
        if self._on_change is not None:
            self._on_change(is_handling)


def raise_again(number: int) -> None:
    """Raise a signal for its present handler, after a training that it has stopped.

    Args:
        number: of the signal, or `REQUESTED_BY_SCRIPT`, which raises nothing.

    Raises:
        SystemExit: the signal has the default handler.
    """
    if number == REQUESTED_BY_SCRIPT:
        return
    if signal.getsignal(number) == signal.SIG_DFL:
        sys.exit(128 + number)
    if threading.current_thread() is threading.main_thread():
        signal.raise_signal(number)


def signal_name(number: int | None) -> str:
    """Return the name of a signal, as logs show it."""
    if number is None or number == REQUESTED_BY_SCRIPT:
        return "Requested by the script"
    return signal.Signals(number).name
