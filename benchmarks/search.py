"""Measure the cost of a trial beyond its training, against the reference, and the gain of a second
worker.

The same study in both libraries, the trials of a sampler with a seed. What a trial takes beyond
training is the time of the whole search less that of all its `train` calls, divided by the number
of trials; promised is no more than in the reference. A fixed study in a SQLite file with two
workers, each a process, is promised to take at most 0.65 of the time that one worker takes.
"""

import logging
import subprocess
import sys
import tempfile
import time

import torch

from .common import (
    LIBRARIES,
    Figure,
    TinyModel,
    interleaved,
    library,
    medians,
    quiet_arguments,
    report,
    tiny_dataset,
)

TRIALS = 6
ROUNDS = 5
WORKER_TRIALS = 8
WORKER_ROUNDS = 3


def space(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)}


def make_trainer(name: str, folder: str, samples: int, **changes):
    api = library(name)
    arguments = quiet_arguments(name, folder, eval_strategy="epoch", num_train_epochs=1, **changes)
    trainer = api.Trainer(
        model_init=TinyModel,
        args=arguments,
        train_dataset=tiny_dataset(samples),
        eval_dataset=tiny_dataset(64),
    )
    for callback in list(trainer.callback_handler.callbacks):
        if "Printer" in type(callback).__name__:
            trainer.remove_callback(callback)
    return trainer


def seconds_beyond_training(name: str) -> float:
    """Return the seconds of one trial, on the average of a search."""
    import optuna

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(name, folder, 256)
        training, train = [], trainer.train

        def timed(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return train(*args, **kwargs)
            finally:
                training.append(time.perf_counter() - begin)

        trainer.train = timed
        begin = time.perf_counter()
        trainer.hyperparameter_search(
            space, n_trials=TRIALS, sampler=optuna.samplers.RandomSampler(seed=0)
        )
        whole = time.perf_counter() - begin
    assert len(training) == TRIALS
    return (whole - sum(training)) / TRIALS


def seconds_of_search(name: str) -> float:
    """Measure the whole search, per trial: the training too."""
    import optuna

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(name, folder, 256)
        begin = time.perf_counter()
        trainer.hyperparameter_search(
            space, n_trials=TRIALS, sampler=optuna.samplers.RandomSampler(seed=0)
        )
        return (time.perf_counter() - begin) / TRIALS


def seconds_with_workers(workers: int) -> float:
    """Measure a fixed study, whose trials are long enough that the start of a worker is not what
    is measured.
    """
    import optuna

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer("lightrainer", folder, 8_000)
        begin = time.perf_counter()
        trainer.hyperparameter_search(
            space,
            n_trials=WORKER_TRIALS,
            n_jobs=workers,
            storage=f"sqlite:///{folder}/study.db",
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        return time.perf_counter() - begin


def seconds_of_counting(processes: int) -> float:
    """Measure the same work for each of some processes: what a second core of this machine is
    worth at present.
    """
    code = "x = 0\nfor i in range(20_000_000): x += i"
    begin = time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    for process in running:
        process.wait()
    return time.perf_counter() - begin


def main() -> list[Figure]:
    import optuna

    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for name in LIBRARIES:
        library(name)
        seconds_of_search(name)  # imports and first uses
    logging.getLogger("lightrainer").setLevel(logging.ERROR)
    beyond = interleaved(
        ROUNDS, {name: lambda name=name: seconds_beyond_training(name) for name in LIBRARIES}
    )
    whole = interleaved(
        ROUNDS, {name: lambda name=name: seconds_of_search(name) for name in LIBRARIES}
    )
    workers = interleaved(
        WORKER_ROUNDS, {str(n): lambda n=n: seconds_with_workers(n) for n in (1, 2)}
    )
    counting = medians(
        interleaved(WORKER_ROUNDS, {str(n): lambda n=n: seconds_of_counting(n) for n in (1, 2)})
    )
    ratios = {}
    rows = []
    for label, measured in (("beyond training", medians(beyond)), ("whole trial", medians(whole))):
        reference, ours = (measured[name] for name in LIBRARIES)
        ratios[label] = ours / reference
        rows.append(
            (
                label,
                (
                    f"{ours * 1e3:8.1f} ms, reference {reference * 1e3:8.1f} ms: "
                    f"{ours / reference:.2f}"
                ),
            )
        )
    one, two = (medians(workers)[n] for n in ("1", "2"))
    ratios["two workers"] = two / one
    rows.append(
        ("two workers", f"{two:8.2f} s, one worker {one:8.2f} s: {two / one:.2f} (at most 0.65)")
    )
    ratios["two processes that count"] = counting["2"] / counting["1"] / 2
    free = "0.50 where both cores are free, 1.00 where the second is taken"
    rows.append(("  of which the machine", f"{ratios['two processes that count']:.2f} ({free})"))
    figures = [
        Figure("a trial of a search, with its training", ratios["whole trial"], 1.0),
        Figure("a study with two workers, against one", ratios["two workers"], 0.65),
    ]
    return report("search", rows, {"ratios": ratios, "rounds": {**beyond, **workers}}, figures)


if __name__ == "__main__":
    main()
