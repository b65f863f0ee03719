"""Check that all ranks act on a control switch that user code has set."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...callbacks.switch_setters import SwitchSetters
from ...lightning_modules.internals.torch_names import default_store

if TYPE_CHECKING:
    # torch documents the class, but does not list it.
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] - not in the `__all__` of torch.distributed

logger = logging.getLogger(__name__)

_trainings = itertools.count()


class SharedDecisions:
    """Detects that a switch was set only on some ranks, before they deadlock.

    A process that is about to act on a switch announces it in the store of the process group, and
    waits until all others have done so. Decisions of `DefaultFlowCallback` are the same in all
    processes, so they are not announced and cost nothing.

    Process 0 does not wait long. The others warn after the same time, but keep waiting until the
    timeout: process 0 may be late, because work that only one process does between two steps, such
    as printing samples, is nearly always done by process 0.

    Args:
        setters: the callbacks that set switches.
        rank: the rank of this process.
        world_size: number of processes.
        timeout: the timeout of collectives, in seconds.
    """

    seconds = 20.0
    """Time until process 0 raises and the others warn, at most half of the timeout."""
    # Seconds between two questions to the store.
    _interval = 0.005

    def __init__(
        self, setters: SwitchSetters, *, rank: int, world_size: int, timeout: float
    ) -> None:
        self._setters = setters
        self._rank = rank
        self._ranks = range(world_size)
        self._timeout = timeout
        self._patience = min(self.seconds, timeout / 2)
        self._prefix = f"lightrainer/decisions/{next(_trainings)}"
        self._announced = 0

    def require(self, switch: str, step: int) -> None:
        """Wait until all ranks act on a switch.

        Args:
            switch: name of the switch, which is set in this process.
            step: optimizer steps taken.

        Raises:
            RuntimeError: not all processes have set it; names the switch, the callback and the
                processes.
        """
        if not self._setters.is_by_arguments(switch):
            self._require_in_all(switch, partial(self._message, switch, step))

    def require_log(self, step: int) -> None:
        """Wait until all processes have called `Trainer.log` in place of a log that is due.

        Args:
            step: optimizer steps taken.

        Raises:
            RuntimeError: not all processes have called it.
        """
        self._require_in_all("log", partial(self._message_of_log, step))

    def _require_in_all(self, name: str, message_about: Callable[[str], str]) -> None:
        """Announce a decision of this rank, and wait for the others.

        Args:
            name: the name of the decision.
            message_about: the processes that have not come to it -> the error.
        """
        # MPI has no store.
        store: Store | None = default_store()
        if store is None:
            return

        # Announce it.
        self._announced += 1
        keys = [self._key(name, rank) for rank in self._ranks]
        store.set(self._key(name, self._rank), "1")

        # Wait for the others.
        if self._all_are_set(store, keys, self._patience):
            return
        missing = [rank for rank in self._ranks if not store.check([self._key(name, rank)])]
        message = message_about(", ".join(map(str, missing)))

        # Rank 0 may only be late.
        if self._rank != 0:
            logger.warning("Waiting until ddp_timeout (%g s): %s", self._timeout, message)
            if self._all_are_set(store, keys, self._timeout - self._patience):
                return
        raise RuntimeError(message)

    def _key(self, name: str, rank: int) -> str:
        return f"{self._prefix}/{self._announced}/{name}/{rank}"

    def _all_are_set(self, store: Store, keys: list[str], seconds: float) -> bool:
        """Return True once all keys are set, False after `seconds`.

        `Store.wait` would block signals, and other threads that use the store.
        """
        end = time.monotonic() + seconds
        while not store.check(keys):
            if time.monotonic() > end:
                return False
            time.sleep(self._interval)
        return True

    def _message(self, switch: str, step: int, missing_ranks: str) -> str:
        setter = self._setters.name(switch)
        by_setter = ""
        if setter is not None:
            by_setter = f" by {setter}"

        return (
            f"control.{switch} was set{by_setter} in process {self._rank} after step {step}, but "
            f"not in process {missing_ranks}. Set it in every process at the same step, without a "
            "condition such as `if state.is_world_process_zero`. If only one process can decide, "
            "broadcast its decision first."
        )

    def _message_of_log(self, step: int, missing_ranks: str) -> str:
        return (
            f"trainer.log was called in process {self._rank} after step {step}, in place of the "
            f"log that is due there, but not in process {missing_ranks}, which takes the mean loss "
            "of all processes for that log. Call it in every process, or add values to the log "
            "that is due: by trainer.record, or to `logs` in an override of log."
        )
