"""`n_jobs` of a search: trials in parallel, in forked processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...lightning_modules.search.channel import Channel
from .retries import is_persistent
from .search_run import SearchRun, enqueue
from .storages import disconnect, open_storage

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from .. import Trainer

ObjectiveFactory = Callable[[SearchRun, Any, Channel], Callable[[Any], Any]]
"""Takes the search, a study and a channel, and returns the function of a trial."""


def check_jobs(jobs: int, trainer: Trainer) -> None:
    """Check that a search can use this number of workers.

    Raises:
        ValueError: it cannot; the message says what to do instead.
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
    """As `Study.optimize` with `n_jobs`, but in processes.

    Threads would share torch's random generators. The workers are forked, so nothing has to be
    pickled.

    Args:
        search: the search.
        study: its study.
        jobs: number of workers; -1 for one for each core.
        make_objective: returns the function of a trial, in a worker.
        options: of `Study.optimize`.
    """
    import optuna

    if jobs == -1:
        jobs = os.cpu_count() or 1
    if is_persistent(study):
        _WorkerPool(search, study, jobs, make_objective, options).run()
        return

    # Workers cannot share a study in main memory: they use a temporary copy of it in a file.
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(os.path.join(folder, "study.log"))
        optuna.copy_study(
            from_study_name=study.study_name, from_storage=study._storage, to_storage=storage
        )
        shared_study = _load_from(storage, study)
        _WorkerPool(search, shared_study, jobs, make_objective, options).run()

        number_before = len(study.get_trials(deepcopy=False))
        study.add_trials(shared_study.get_trials(deepcopy=False)[number_before:])


def _load_from(storage: BaseStorage, study: Study) -> Study:
    """Load a study from another storage, with the same sampler and pruner."""
    import optuna

    return optuna.load_study(
        study_name=study.study_name, storage=storage, sampler=study.sampler, pruner=study.pruner
    )


class _WorkerPool:
    """Workers that take trials until there are enough, or one of them fails."""

    def __init__(
        self,
        search: SearchRun,
        study: Study,
        jobs: int,
        make_objective: ObjectiveFactory,
        options: dict[str, Any],
    ) -> None:
        self.context = multiprocessing.get_context("fork")
        self.search = search
        self.study = study
        self.jobs = jobs
        self.make_objective = make_objective
        self.options = options

        # The trials that may still start, shared by all workers; negative for any number.
        n_trials = options["n_trials"]
        self.trials_left = self.context.Value("l", -1 if n_trials is None else n_trials)
        self.failures = self.context.SimpleQueue()

    def run(self) -> None:
        """Start the workers, wait for them, and raise the error of one that failed."""
        enqueue(self.study, self.search.options.enqueue)

        # Forked workers would share the connection, and close it when they exit.
        disconnect(self.study._storage)

        workers = [self.context.Process(target=self._work) for _ in range(self.jobs)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()

        # An error of a worker, or else the exit code of one that was killed.
        if not self.failures.empty():
            error, message = self.failures.get()
            raise error or RuntimeError(message)
        exit_codes = [worker.exitcode for worker in workers if worker.exitcode != 0]
        if exit_codes:
            raise RuntimeError(
                f"{len(exit_codes)} of {self.jobs} workers exited with code {exit_codes[0]} and "
                "reported no error; they were probably killed."
            )

    def _work(self) -> None:
        """Train trials until none is left; the main function of a worker."""
        from ...lightning_modules.search.shared_study import optimize_together  # imports Lightning

        # The threads of the parent do not exist after a fork.
        torch.set_num_threads(1)
        if not self._take_trial():
            return

        # Each worker needs its own connections and random numbers.
        study = _load_from(_reopen(self.study._storage), self.study)
        study.sampler.reseed_rng()
        has_taken_all = False

        def stop_after_last_trial(study: Study, trial: FrozenTrial) -> None:
            nonlocal has_taken_all
            if not self._take_trial():
                has_taken_all = True
                study.stop()

        callbacks = [*(self.options.get("callbacks") or []), stop_after_last_trial]
        options = {**self.options, "n_trials": None, "callbacks": callbacks}
        try:
            channel = Channel()
            objective = self.make_objective(self.search, study, channel)
            optimize_together(study, objective, channel=channel, **options)
        except Exception as error:
            self.failures.put((_picklable(error), f"{type(error).__name__}: {error}"))

        # An error, the timeout or a callback of the user ended the search: for all workers.
        if not has_taken_all:
            with self.trials_left.get_lock():
                self.trials_left.value = 0

    def _take_trial(self) -> bool:
        """Return whether this worker may start another trial, and count it."""
        with self.trials_left.get_lock():
            if self.trials_left.value > 0:
                self.trials_left.value -= 1
                return True
            return self.trials_left.value < 0


def _reopen(storage: BaseStorage) -> BaseStorage:
    """Return the storage with new connections; those of the parent cannot be shared."""
    # A study wraps the storage of a database in a cache, whose `_backend` it is.
    database = getattr(storage, "_backend", storage)
    url = getattr(database, "url", None)
    if url is not None:
        return open_storage(str(url))

    # A copy of a journal gets a new worker id. With the same id two workers would take the same
    # queued trial.
    return copy.copy(storage)


def _picklable(error: Exception) -> Exception | None:
    """Return an error if it can be sent to the parent; None if it cannot."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return None
