"""Check that all processes act on a switch of the control that user code has set."""

from __future__ import annotations

import itertools
import logging
import time
from typing import TYPE_CHECKING

from ...callbacks.switch_setters import SwitchSetters
from ...lightning_modules.internals.torch_names import default_store

if TYPE_CHECKING:
    # torch documents the class, but does not list it.
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] - not in the `__all__` of torch.distributed

logger = logging.getLogger(__name__)

_trainings = itertools.count()


class SharedDecisions:
    """Detect that a switch was set in some processes only, before they deadlock.

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
        """Wait until all processes are about to act on a switch.

        Args:
            switch: name of the switch, which is set in this process.
            step: optimizer steps taken.

        Raises:
            RuntimeError: not all processes have set it; names the switch, the callback and the
                processes.
        """
        if self._setters.is_by_arguments(switch):
            return

        # MPI has no store.
        store: Store | None = default_store()
        if store is None:
            return

        # Announce it.
        self._announced += 1
        keys = [self._key(switch, rank) for rank in self._ranks]
        store.set(self._key(switch, self._rank), "1")

        # Wait for the others.
        if self._all_are_set(store, keys, self._patience):
            return
        missing = [rank for rank in self._ranks if not store.check([self._key(switch, rank)])]
        message = self._message(switch, step, missing)

        # Process 0 may only be late.
        if self._rank != 0:
            logger.warning("Waiting until ddp_timeout (%g s): %s", self._timeout, message)
            if self._all_are_set(store, keys, self._timeout - self._patience):
                return
        raise RuntimeError(message)

    def _key(self, switch: str, rank: int) -> str:
        return f"{self._prefix}/{self._announced}/{switch}/{rank}"

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

    def _message(self, switch: str, step: int, missing: list[int]) -> str:
        setter = self._setters.name(switch)
        by_setter = ""
        if setter is not None:
            by_setter = f" by {setter}"

        missing_ranks = ", ".join(map(str, missing))
        return (
            f"control.{switch} was set{by_setter} in process {self._rank} after step {step}, but "
            f"not in process {missing_ranks}. Set it in every process at the same step, without a "
            "condition such as `if state.is_world_process_zero`. If only one process can decide, "
            "broadcast its decision first."
        )
