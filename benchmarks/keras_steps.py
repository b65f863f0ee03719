"""The time of a step of a Keras model: on torch and over the bridge to TensorFlow, against Keras on
TensorFlow.

`bare` is a loop around Keras on torch without a Trainer: what Keras costs there by itself.

Three layers of a width, in batches of 32, trained with Adam. Each side is a process of its own, as
Keras computes in one library for good, and they take their turns. The goals are 1.0 of TensorFlow's
time for Keras on torch and 1.3 for the bridge, at width 512. TensorFlow has to be there:
`make test-tf` puts it aside.
"""

import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .common import Figure, medians, report

WIDTHS = (64, 512)
FEATURES, CLASSES, BATCH = 32, 10, 32
GOALS = {"torch": 1.0, "bridge": 1.3}
SKIPPED, STEPS = 20, 150
ROUNDS = 9
BACKENDS = {
    "fit": "tensorflow",
    "loop": "tensorflow",
    "bridge": "tensorflow",
    "bare": "torch",
    "torch": "torch",
}
"""The sides, with what Keras computes in; `fit` and `loop` are TensorFlow's own, `bare` is a
loop of torch.
"""


class Clock:
    """The processor time of the steps after the first ones."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def tick(self) -> None:
        """Note the end of a step."""
        self.ticks.append(time.process_time())

    def per_step(self) -> float:
        """Microseconds."""
        return (self.ticks[-1] - self.ticks[SKIPPED - 1]) / (len(self.ticks) - SKIPPED) * 1e6


def samples() -> tuple[np.ndarray, np.ndarray]:
    state = np.random.RandomState(0)
    count = (SKIPPED + STEPS) * BATCH
    return state.standard_normal((count, FEATURES)).astype("float32"), state.randint(
        0, CLASSES, count
    )


def network(width: int) -> Any:
    import keras

    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    model = keras.Sequential(
        [keras.layers.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    return model


def dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(samples())


def fit(width: int, clock: Clock) -> None:
    """Train with `keras.Model.fit`."""
    import keras

    ticking = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: clock.tick())
    data = dataset().shuffle((SKIPPED + STEPS) * BATCH).batch(BATCH).prefetch(-1)
    network(width).fit(data, verbose=0, callbacks=[ticking])


def loop(width: int, clock: Clock) -> None:
    """Train with the loop of Keras's guide: a `tf.function` around tape and optimizer."""
    import tensorflow as tf

    model = network(width)
    model.optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_weights)
        model.optimizer.apply(gradients, model.trainable_weights)
        return loss

    for x, y in dataset().shuffle((SKIPPED + STEPS) * BATCH).batch(BATCH).prefetch(-1):
        step(x, y)
        clock.tick()


def bare(width: int, clock: Clock) -> None:
    """Train Keras on torch with the loop of Keras's guide for torch, and torch's fused AdamW."""
    import torch

    model = network(width)
    optimizer = torch.optim.AdamW(
        [variable.value for variable in model.trainable_variables], lr=1e-3, fused=True
    )
    features, labels = samples()
    data = torch.utils.data.TensorDataset(torch.from_numpy(features), torch.from_numpy(labels))
    for x, y in torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True):
        model.loss(y, model(x, training=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()


def ours(data: Any, width: int, clock: Clock) -> None:
    """Train with `TFTrainer`."""
    from lightrainer import TFTrainer, TFTrainingArguments, TrainerCallback

    class Ticking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.tick()

    with tempfile.TemporaryDirectory() as folder:
        quiet = {
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_steps": 10**6,
        }
        args = TFTrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            use_cpu=True,
            log_level="error",
            **quiet,
        )
        TFTrainer(network(width), args, data, callbacks=[Ticking()]).train()


SIDES: dict[str, Callable[[int, Clock], None]] = {
    "fit": fit,
    "loop": loop,
    "bare": bare,
    "bridge": lambda width, clock: ours(dataset(), width, clock),
    "torch": lambda width, clock: ours(list(zip(*samples(), strict=True)), width, clock),
}


def serve(side: str) -> None:
    """Answer each width of stdin with the microseconds of a step."""
    import torch

    torch.set_num_threads(1)
    if BACKENDS[side] == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        clock = Clock()
        SIDES[side](int(line), clock)
        print(clock.per_step(), file=answers, flush=True)


def started(side: str, aside: str) -> Any:
    """Return a process that serves one side."""
    path = os.pathsep.join(filter(None, [aside, os.environ.get("PYTHONPATH", "")]))
    variables = {
        "KERAS_BACKEND": BACKENDS[side],
        "PYTHONPATH": path,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.keras_steps", side]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "text": True,
    }
    return subprocess.Popen(command, env={**os.environ, **variables}, **pipes)


def ask(process: Any, width: int) -> float:
    process.stdin.write(f"{width}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> list[Figure]:
    aside = Path(sys.prefix, "tf")
    if not aside.is_dir() and importlib.util.find_spec("tensorflow") is None:
        print("  TensorFlow is not installed; run `make test-tf`.")
        return []
    processes = {side: started(side, str(aside) if aside.is_dir() else "") for side in SIDES}
    measured: dict[str, list[float]] = {
        f"{side} {width}": [] for side, width in itertools.product(SIDES, WIDTHS)
    }
    for _, width, side in itertools.product(range(ROUNDS), WIDTHS, SIDES):
        measured[f"{side} {width}"].append(ask(processes[side], width))
    for process in processes.values():
        process.communicate()
    return show(medians(measured))


def show(steps: dict[str, float]) -> list[Figure]:
    """Print the time of a step, and its ratio to the faster one of TensorFlow's own ways."""
    rows, ratios = [], {}
    for width in WIDTHS:
        native = min(steps[f"{side} {width}"] for side in ("fit", "loop"))
        for side in SIDES:
            ratios[f"{side} {width}"] = ratio = steps[f"{side} {width}"] / native
            rows.append(
                (f"{side}, width {width}", f"{steps[f'{side} {width}']:8.0f} us   {ratio:.2f}")
            )
    named = {"torch": "Keras on torch", "bridge": "a model that computes in TensorFlow"}
    figures = [
        Figure(
            f"step of {description}, width 512, against TensorFlow's own",
            ratios[f"{side} 512"],
            GOALS[side],
        )
        for side, description in named.items()
    ]
    return report("keras_steps", rows, {"steps_us": steps, "ratios": ratios}, figures)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
