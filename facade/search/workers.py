"""`n_jobs`: trials side by side, each worker a process of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import tempfile
import time
from typing import Any

import torch

from ...lightning_modules.search.channel import Channel
from . import retries
from .search import Search
from .storages import disconnect, open_storage
from .studies import OptunaObjective, best_runs

logger = logging.getLogger(__name__)


def check_jobs(jobs: Any, trainer: Any) -> None:
    """Refuse numbers of workers that cannot be.

    Raises:
        ValueError: says what to do instead.
    """
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs == 0 or jobs < -1:
        raise ValueError(f"n_jobs={jobs!r} must be a whole number of at least 1, or -1 for one for each core.")
    if jobs == 1:
        return
    instead = "start the search as `python -m lightrainer sweep script.py --workers N`, which has a process for each."
    if trainer.args.world_size > 1:
        raise ValueError(f"n_jobs={jobs}: several processes train each trial together already. Pass n_jobs=1.")
    if trainer.args.device.type != "cpu" or not hasattr(os, "fork"):
        raise ValueError(
            f"n_jobs={jobs}: on {trainer.args.device.type} this process cannot be forked into workers. Instead, "
            f"{instead}"
        )


def optimize_in_workers(trainer: Any, search: Search, study: Any, jobs: int, **options: Any) -> Any:
    """As `Study.optimize` with `n_jobs`, but in processes: threads would share the random generators of torch.

    The workers are forked, so that nothing has to be pickled. A study in main memory is kept in a file meanwhile.

    Args:
        trainer: the Trainer.
        search: the search.
        study: its study.
        jobs: how many workers; -1 for one for each core.
        options: of `Study.optimize`.

    Returns:
        What `best_runs` gives.
    """
    import optuna

    jobs = (os.cpu_count() or 1) if jobs == -1 else jobs
    with tempfile.TemporaryDirectory() as folder:
        shared = study
        if not retries.is_persistent(study):
            storage = open_storage(os.path.join(folder, "study.log"))
            optuna.copy_study(from_study_name=study.study_name, from_storage=study._storage, to_storage=storage)
            shared = _loaded(study, storage)
        _Pool(trainer, search, shared, jobs, options).run()
        if shared is not study:
            for trial in shared.get_trials(deepcopy=False)[len(study.get_trials(deepcopy=False)) :]:
                study.add_trial(trial)
    return best_runs(study)


def _loaded(study: Any, storage: Any) -> Any:
    import optuna

    return optuna.load_study(study_name=study.study_name, storage=storage, sampler=study.sampler, pruner=study.pruner)


class _Pool:
    """Workers that take trials until there are enough, or one of them fails."""

    def __init__(self, trainer: Any, search: Search, study: Any, jobs: int, options: dict[str, Any]) -> None:
        self.context: Any = multiprocessing.get_context("fork")
        self.trainer, self.search, self.study, self.jobs, self.options = trainer, search, study, jobs, options
        self.left: Any = self.context.Value("l", -1 if options["n_trials"] is None else options["n_trials"])
        self.failures: Any = self.context.SimpleQueue()

    def run(self) -> None:
        """Start them, wait, and raise what one of them could not cope with."""
        disconnect(self.study._storage)  # or the end of a worker would end the connection of this process
        workers = [self.context.Process(target=self._work, args=(index,), daemon=False) for index in range(self.jobs)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except BaseException:
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()
            raise
        if not self.failures.empty():
            error, said = self.failures.get()
            raise error if isinstance(error, Exception) else RuntimeError(said)
        killed = [worker.exitcode for worker in workers if worker.exitcode != 0]
        if killed:
            raise RuntimeError(f"{len(killed)} of {self.jobs} workers ended with exit code {killed[0]}.")

    def _work(self, index: int) -> None:
        torch.set_num_threads(1)  # threads of the parent are not there after a fork
        if not self._take():
            return
        study = _loaded(self.study, _reopened(self.study._storage))
        study.sampler.reseed_rng()
        ours = False

        def stop_after_the_last(study: Any, trial: Any) -> None:
            nonlocal ours
            if not self._take():
                ours = True
                study.stop()

        callbacks = [*(self.options.get("callbacks") or []), stop_after_the_last]
        begun = time.monotonic()
        try:
            study.optimize(
                OptunaObjective(self.search, study, Channel()),
                **{**self.options, "n_trials": None, "callbacks": callbacks},
            )
        except Exception as error:
            self._end()
            self.failures.put((_sendable(error), f"{type(error).__name__}: {error}"))
        if not ours:  # the time is up, or a callback has stopped the study
            logger.debug("Worker %s ended after %.0f s.", index, time.monotonic() - begun)
            self._end()

    def _end(self) -> None:
        with self.left.get_lock():
            self.left.value = 0

    def _take(self) -> bool:
        with self.left.get_lock():
            if self.left.value == 0:
                return False
            if self.left.value > 0:
                self.left.value -= 1
            return True


def _reopened(storage: Any) -> Any:
    """The storage with connections of its own: those of the parent cannot be shared."""
    address = getattr(getattr(storage, "_backend", storage), "url", None)
    return storage if address is None else open_storage(str(address))


def _sendable(error: Exception) -> Exception | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error
