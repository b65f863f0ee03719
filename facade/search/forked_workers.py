"""`n_jobs`: trials side by side, in forked processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import tempfile
from typing import Any

import torch

from ...lightning_modules.search.channel import Channel
from .retries import is_persistent
from .search_run import SearchRun, enqueue
from .storages import disconnect, open_storage


def check_jobs(jobs: int, trainer: Any) -> None:
    """Refuse an impossible number of workers.

    Raises:
        ValueError: says what to do instead.
    """
    if jobs == 0 or jobs < -1:
        raise ValueError(f"n_jobs={jobs!r} must be at least 1, or -1 for one for each core.")
    if jobs == 1:
        return
    if trainer.args.world_size > 1:
        raise ValueError(
            f"n_jobs={jobs}: several processes train each trial together already. Pass n_jobs=1."
        )
    if trainer.args.device.type != "cpu" or not hasattr(os, "fork"):
        raise ValueError(
            f"n_jobs={jobs}: on {trainer.args.device.type} this process cannot be forked into "
            "workers. Start `python -m lightrainer sweep script.py --workers N` instead."
        )


def optimize_in_workers(
    search: SearchRun, study: Any, jobs: int, objective: Any, options: dict[str, Any]
) -> None:
    """As `Study.optimize` with `n_jobs`, but in processes: threads would share the random
    generators of torch.

    The workers are forked, so that nothing has to be pickled. A study in main memory is kept in a
    file meanwhile.

    Args:
        search: the search.
        study: its study.
        jobs: number of workers; -1 for one for each core.
        objective: takes the search, a study and a channel, and returns the function of a trial.
        options: of `Study.optimize`.
    """
    import optuna

    jobs = (os.cpu_count() or 1) if jobs == -1 else jobs
    if is_persistent(study):
        _Pool(search, study, jobs, objective, options).run()
        return
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(os.path.join(folder, "study.log"))
        optuna.copy_study(
            from_study_name=study.study_name, from_storage=study._storage, to_storage=storage
        )
        shared = _loaded(study, storage)
        _Pool(search, shared, jobs, objective, options).run()
        study.add_trials(shared.get_trials(deepcopy=False)[len(study.get_trials(deepcopy=False)) :])


def _loaded(study: Any, storage: Any) -> Any:
    import optuna

    return optuna.load_study(
        study_name=study.study_name, storage=storage, sampler=study.sampler, pruner=study.pruner
    )


class _Pool:
    """Workers that take trials until there are enough, or one of them fails."""

    def __init__(
        self, search: SearchRun, study: Any, jobs: int, objective: Any, options: dict[str, Any]
    ) -> None:
        self.context: Any = multiprocessing.get_context("fork")
        self.search = search
        self.study = study
        self.jobs = jobs
        self.objective = objective
        self.options = options
        self.left: Any = self.context.Value(
            "l", -1 if options["n_trials"] is None else options["n_trials"]
        )
        self.failures: Any = self.context.SimpleQueue()

    def run(self) -> None:
        """Start the workers, wait for them, and raise the error of one that failed."""
        enqueue(self.study, self.search.options.enqueue)
        # or the end of a worker would end the connection of this process
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
        if not self.failures.empty():
            error, message = self.failures.get()
            raise error or RuntimeError(message)
        killed = [worker.exitcode for worker in workers if worker.exitcode != 0]
        if killed:
            raise RuntimeError(
                f"{len(killed)} of {self.jobs} workers ended with exit code {killed[0]}."
            )

    def _work(self) -> None:
        from ...lightning_modules.search.shared_study import optimize_together  # imports Lightning

        torch.set_num_threads(1)  # the parent's threads are gone after a fork
        if not self._take():
            return
        study = _loaded(self.study, _reopened(self.study._storage))
        study.sampler.reseed_rng()
        stopped_here = False

        def stop_after_the_last(study: Any, trial: Any) -> None:
            nonlocal stopped_here
            if not self._take():
                stopped_here = True
                study.stop()

        callbacks = [*(self.options.get("callbacks") or []), stop_after_the_last]
        options = {**self.options, "n_trials": None, "callbacks": callbacks}
        try:
            channel = Channel()
            optimize_together(
                study, self.objective(self.search, study, channel), channel=channel, **options
            )
        except Exception as error:
            self.failures.put((_picklable(error), f"{type(error).__name__}: {error}"))
        # an error, the timeout, or a callback ends the search: for all workers
        if not stopped_here:
            with self.left.get_lock():
                self.left.value = 0

    def _take(self) -> bool:
        with self.left.get_lock():
            if self.left.value > 0:
                self.left.value -= 1
                return True
            return self.left.value < 0


def _reopened(storage: Any) -> Any:
    """Return the storage with connections of its own, as those of the parent cannot be shared."""
    address = getattr(getattr(storage, "_backend", storage), "url", None)
    # A copy of a journal has an id of its own: with the same one, two workers would take the same
    # queued trial.
    return copy.copy(storage) if address is None else open_storage(str(address))


def _picklable(error: Exception) -> Exception | None:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return None
