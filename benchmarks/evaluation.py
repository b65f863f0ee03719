"""Evaluations whose predictions are large: time, its growth, memory; and what an evaluation of a
tiny model costs.

Logits of 4,000 classes in batches of 8, which `compute_metrics` wants to see, or a torchmetrics
metric. Linear growth is a factor of 2. Memory is measured in a process of its own: how far it grows
beyond what it had before the evaluation, against the size of the arrays. The overhead is that of a
batch beyond a bare loop, as in `step_overhead`.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

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

CLASSES = 4000
BATCH = 8
ROUNDS = 1  # the larger one takes the reference a minute
WIDE_ROUNDS = 25
QUICK = ("bare", "lightrainer")
MEGABYTES = (64, 128)
TINY_BATCHES = 400
TINY_ROUNDS = 10
ARRAYS = {"function": "evaluate", "predict": "predict", "lengths": "predict, different lengths"}


class Wide(nn.Module):
    """Spreads one number over many classes: nearly no computation, large logits."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, CLASSES))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of shape (batch, classes) for `x` of shape (batch,)."""
        logits = x[:, None] * self.weight
        return {"loss": logits[:, 0].mean(), "logits": logits}


class Ragged(Wide):
    """Its logits are up to an eighth shorter, another length for each batch; the first ones are
    the shortest.
    """

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of shape (batch, up to classes)."""
        outputs = super().forward(x, labels)
        shorter = CLASSES // 8 - int(x[0]) // BATCH * 7919 % (CLASSES // 8)
        return {
            "loss": outputs["loss"],
            "logits": outputs["logits"][:, : CLASSES - shorter].clone(),
        }


def wide_trainer(name: str, folder: str, megabytes: int, kind: str) -> Any:
    """Return a trainer that evaluates so many megabytes of logits."""
    metrics: Any = lambda prediction: {"rows": len(prediction.predictions)}  # noqa: E731 - short
    if kind == "metric":
        from torchmetrics.classification import MulticlassAccuracy

        metrics = MulticlassAccuracy(CLASSES, average="micro")
    return library(name).Trainer(
        Ragged() if kind == "lengths" else Wide(),
        quiet_arguments(name, folder, per_device_eval_batch_size=BATCH),
        eval_dataset=wide_dataset(megabytes),
        data_collator=default_collate,
        compute_metrics=metrics,
    )


def wide_dataset(megabytes: int) -> list[dict[str, torch.Tensor]]:
    """Return the samples with so many megabytes of logits."""
    count = megabytes * 2**20 // (4 * CLASSES)
    return [
        {"x": torch.tensor(float(i)), "labels": torch.tensor(i % CLASSES)} for i in range(count)
    ]


def evaluation(name: str, megabytes: int) -> float:
    """Return the seconds of the processor of one `evaluate`; `bare` is the shortest loop that
    keeps the same arrays.
    """
    if name == "bare":
        return bare_evaluation(wide_dataset(megabytes))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = wide_trainer(name, folder, megabytes, "function")
        begin = time.process_time()
        metrics = trainer.evaluate()
        seconds = time.process_time() - begin
    assert metrics["eval_rows"] == len(trainer.eval_dataset)
    return seconds


def bare_evaluation(dataset: list) -> float:
    """Return the seconds of the processor of a loop that writes logits and labels to arrays of
    their final size.
    """
    model, losses = Wide().eval(), []
    begin = time.process_time()
    logits, labels = np.empty((len(dataset), CLASSES), np.float32), np.empty(len(dataset), np.int64)
    with torch.no_grad():
        for number, batch in enumerate(
            DataLoader(dataset, batch_size=BATCH, collate_fn=default_collate)
        ):
            outputs, rows = model(**batch), slice(number * BATCH, (number + 1) * BATCH)
            losses.append(outputs["loss"].item())
            logits[rows], labels[rows] = outputs["logits"].numpy(), batch["labels"].numpy()
    return time.process_time() - begin


def memory(name: str, megabytes: int, kind: str) -> dict[str, float]:
    """Megabytes that a fresh process grows by in an evaluation, and those of the logits."""
    command = [sys.executable, "-m", "benchmarks.evaluation", name, str(megabytes), kind]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure_memory(name: str, megabytes: int, kind: str) -> dict[str, float]:
    """Measure memory in that process: see `memory`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = wide_trainer(name, folder, megabytes, kind)
        # what is loaded or made once is there from now on
        trainer.predict(trainer.eval_dataset[: 4 * BATCH])
        with peak_growth() as growth:
            if kind in ("predict", "lengths"):
                logits = trainer.predict(trainer.eval_dataset).predictions.nbytes
            else:
                trainer.evaluate()
                logits = 4 * CLASSES * len(trainer.eval_dataset)
    return {"growth": growth[0] / 2**20, "logits": logits / 2**20}


@contextlib.contextmanager
def peak_growth() -> Iterator[list[float]]:
    """Return the most bytes of resident memory that the process has more, meanwhile, than at the
    beginning.
    """
    import psutil

    process, done = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    growth = [0.0]

    def watch() -> None:
        while not done.wait(0.0005):
            growth[0] = max(growth[0], process.memory_info().rss - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield growth
    finally:
        done.set()
        thread.join()


def bare_loop(dataset: list) -> float:
    """Processor seconds per batch of the shortest loop that does the same work."""
    model = TinyModel().eval()
    begin = time.process_time()
    with torch.no_grad():
        for batch in DataLoader(dataset, batch_size=BATCH, collate_fn=default_collate):
            model(**batch)
    return (time.process_time() - begin) / TINY_BATCHES


def tiny_evaluation(trainer: Any) -> float:
    """Processor seconds per batch of `evaluate`."""
    with contextlib.redirect_stdout(io.StringIO()):
        begin = time.process_time()
        trainer.evaluate()
        return (time.process_time() - begin) / TINY_BATCHES


def overhead() -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Measure the cost of a batch of a tiny model beyond a bare loop, with the loss alone and
    with predictions.
    """
    dataset = tiny_dataset(TINY_BATCHES * BATCH)
    rows, results = [], {}
    for gathered, metrics in (("loss", None), ("predictions", lambda prediction: {})):
        candidates = {"bare": lambda: bare_loop(dataset)}
        with tempfile.TemporaryDirectory() as folder:
            for name in LIBRARIES:
                arguments = quiet_arguments(name, folder, per_device_eval_batch_size=BATCH)
                inputs = {
                    "eval_dataset": dataset,
                    "data_collator": default_collate,
                    "compute_metrics": metrics,
                }
                trainer = library(name).Trainer(TinyModel(), arguments, **inputs)
                candidates[name] = lambda trainer=trainer: tiny_evaluation(trainer)
            # The shortest of many rounds: what else runs on the machine only adds to it.
            batch = {
                name: min(values) * 1e6
                for name, values in interleaved(TINY_ROUNDS, candidates).items()
            }
        ratio = (batch["lightrainer"] - batch["bare"]) / (batch["transformers"] - batch["bare"])
        rows += [
            (f"{name}, one batch of a tiny model, {gathered}", f"{value:5.0f} us")
            for name, value in batch.items()
        ]
        rows.append((f"(lightrainer - bare) / (transformers - bare), {gathered}", f"{ratio:.2f}"))
        results[gathered] = {"microseconds": batch, "ratio": ratio}
    return rows, results


def memory_growth() -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Measure how far memory grows; for the reference once and with less data, for it takes
    long.
    """
    (small, large), rows, results = MEGABYTES, [], {}
    cases = [
        ("transformers", "predict", small),
        *(("lightrainer", kind, large) for kind in ARRAYS),
    ]
    for name, kind, size in cases:
        result = results[f"{name}, {kind}"] = memory(name, size, kind)
        times = f"{result['growth'] / result['logits']:.2f} times the arrays"
        rows.append((f"{name}, growth of memory at {size} MB, {ARRAYS[kind]}", times))
    for size in MEGABYTES:
        result = results[f"lightrainer, metric, {size} MB"] = memory("lightrainer", size, "metric")
        rows.append(
            (
                f"lightrainer, growth of memory at {size} MB, torchmetrics",
                f"{result['growth']:.1f} MB",
            )
        )
    return rows, results


def main() -> list[Figure]:
    torch.set_num_threads(1)
    keys = {f"{name}, {size} MB": (name, size) for size in MEGABYTES for name in LIBRARIES}
    small, large = MEGABYTES
    evaluation("lightrainer", small)  # the first one loads what it needs
    # Before the reference: the system takes back and gives again the gigabytes that it goes
    # through.
    near = interleaved(
        WIDE_ROUNDS, {f"{side}, {large} MB": partial(evaluation, side, large) for side in QUICK}
    )
    measured = interleaved(ROUNDS, {key: lambda of=of: evaluation(*of) for key, of in keys.items()})
    seconds = medians({**measured, **near})
    beside_bare = seconds[f"lightrainer, {large} MB"] / seconds[f"bare, {large} MB"]
    growth = {
        name: seconds[f"{name}, {large} MB"] / seconds[f"{name}, {small} MB"] for name in LIBRARIES
    }
    ratio = seconds[f"lightrainer, {large} MB"] / seconds[f"transformers, {large} MB"]
    rows = [(f"{key} of logits", f"{value:6.3f} s") for key, value in seconds.items()]
    rows += [
        (f"{name}, twice the data", f"{value:.1f} times the time") for name, value in growth.items()
    ]
    rows.append((f"lightrainer / transformers at {large} MB", f"{ratio:.3f}"))
    memory_rows, of_memory = memory_growth()
    tiny_rows, tiny = overhead()
    results = {
        "seconds": seconds,
        "growth": growth,
        "ratio": ratio,
        "memory": of_memory,
        "tiny": tiny,
    }
    figures = [
        Figure(f"evaluation with {large} MB of logits", ratio, 1.0),
        Figure(f"evaluation with {large} MB of logits, against a bare loop", beside_bare, 1.3),
        *(
            Figure(f"an evaluation batch beyond a bare loop, {gathered}", each["ratio"], 0.6)
            for gathered, each in tiny.items()
        ),
    ]
    return report("evaluation", rows + memory_rows + tiny_rows, results, figures)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_memory(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main()
