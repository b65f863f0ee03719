"""Run trials of a search in parallel in forked processes (`n_jobs`)."""

from __future__ import annotations

import copy
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...lightning_modules.common.worker_processes import exit_with_parent
from ...lightning_modules.search.channel import Channel
from .search_run import SearchRun
from .storages import disconnect

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    from optuna import Study
    from optuna.trial import FrozenTrial

    from .. import Trainer

ObjectiveFactory = Callable[[SearchRun, Any, Channel], Callable[[Any], Any]]
"""Makes the function that trains a trial, from the search, a study and a channel."""


def check_jobs(jobs: int, trainer: Trainer) -> None:
    """Check that a search can use this number of workers.

    Raises:
        ValueError: the search cannot; the message says what to do instead.
    """
    if jobs == 0 or jobs < -1:
        raise ValueError(f"n_jobs={jobs!r} must be at least 1, or -1 for one for each core.")
    if jobs == 1:
        return
    if trainer.args.world_size > 1:
        raise ValueError(
            f"n_jobs={jobs}: several processes already train each trial together. Pass n_jobs=1."
        )
    device_type = trainer.args.device.type
    if device_type != "cpu" or not hasattr(os, "fork"):
        raise ValueError(
            f"n_jobs={jobs}: on {device_type} this process cannot be forked into workers. Run "
            "`python -m lightrainer sweep script.py --workers N` instead."
        )


def optimize_in_workers(
    search: SearchRun,
    study: Study,
    jobs: int,
    make_objective: ObjectiveFactory,
    options: dict[str, Any],
) -> None:
    """Run a study with `n_jobs`, in forked processes instead of Optuna's threads.

    Threads would share torch's random number generators. The workers are forked, so that nothing
    has to be pickled except their errors.

    Args:
        search: the search.
        study: the study of the search, in a storage that processes can share.
        jobs: number of workers; -1 for one per core.
        make_objective: called in each worker to make the function that trains a trial.
        options: the options of `Study.optimize`.

    Raises:
        BrokenProcessPool: a worker was killed.
    """
    if jobs == -1:
        jobs = os.cpu_count() or 1

    # Disconnect, because forked workers would share the connection and close it when they exit.
    disconnect(study._storage)
    fork = multiprocessing.get_context("fork")
    n_trials = options.pop("n_trials")
    trials_left = fork.Value("l", -1 if n_trials is None else n_trials)
    role = _Worker(search, study, make_objective, options, trials_left)
    with ProcessPoolExecutor(jobs, fork, initializer=_become, initargs=(role,)) as pool:
        workers = [pool.submit(_train_trials) for _ in range(jobs)]
        try:
            wait(workers, return_when=FIRST_COMPLETED)
        finally:
            # The search ends with the first worker that finishes: it had the last trial, reached
            # the timeout, or was stopped by an error or a callback.
            trials_left.value = 0
    try:
        for worker in workers:
            worker.result()
    except BrokenProcessPool as error:
        raise BrokenProcessPool(
            f"n_jobs={jobs}: a worker was killed, perhaps for lack of memory, so the search has "
            "ended. trainer.study has its trials. With the same storage and study_name, and "
            "load_if_exists=True, another search retries the interrupted ones."
        ) from error


@dataclass
class _Worker:
    """Worker process that trains trials of a study until there are enough."""

    search: SearchRun
    study: Study
    make_objective: ObjectiveFactory
    options: dict[str, Any]
    trials_left: Synchronized[int]
    """Number of trials that may still start, shared by all workers; negative for no limit."""

    def train_trials(self) -> None:
        """Train trials until none are left; the main function of a worker."""
        from ...lightning_modules.search.shared_study import optimize_together  # imports Lightning

        # Use one thread: torch's threads exist only in the parent process, so an operation that
        # uses several would hang.
        torch.set_num_threads(1)
        if not self._take_trial():
            return

        # Copy the journal to get a new worker id. With the same id, two workers would take the same
        # queued trial.
        study = self.study
        study._storage = copy.copy(study._storage)
        study.sampler.reseed_rng()
        callbacks = [*(self.options.pop("callbacks", None) or ()), self._stop_after_last_trial]
        channel = Channel()
        objective = self.make_objective(self.search, study, channel)
        optimize_together(study, objective, channel=channel, callbacks=callbacks, **self.options)

    def _stop_after_last_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Stop this worker's loop unless it may start another trial; an Optuna callback."""
        if not self._take_trial():
            study.stop()

    def _take_trial(self) -> bool:
        """Return whether this worker may start another trial, and count it."""
        with self.trials_left.get_lock():
            if self.trials_left.value > 0:
                self.trials_left.value -= 1
                return True
            return self.trials_left.value < 0


_worker: _Worker
"""The worker of this process; set only in the processes of the pool."""


def _become(worker: _Worker) -> None:
    """Set the worker of this process; the pool calls it in each process that it starts."""
    global _worker
    _worker = worker
    # Exit with the parent, because a pool whose process is killed does not terminate its workers.
    exit_with_parent()


def _train_trials() -> None:
    """Train trials in the worker of this process."""
    _worker.train_trials()
