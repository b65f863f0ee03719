"""How long training stands still for checkpoints of 240 MB: lightrainer / reference, in one run.

A model of 20 million parameters with AdamW. Reference and lightrainer train in turns, save every
few steps, and after the last one. By the clock on the wall, as training waits for the disk too:

- the standstill of a periodic checkpoint: the time between the end of its step and the beginning of
  the next one, beyond that between other steps;
- the wait at the end: from the end of the last step until `train()` returns, with the last
  checkpoint in it;
- all of a run: the sum of both.

By the time of the processor: what all threads took beside the steps, for each checkpoint, and what
the wait at the end took. A thread that writes and one that trains slow each other down, above all
where two processors share a core: the first figure has that of the writing in it, that of the steps
is shown beside it; the second is the writing alone. Flushing to the disk is in all of them.

Between two checkpoints of a training lie minutes, and what was memory for the one is given to
others meanwhile, by a virtual machine even to its host. As that costs time the next time, a pause
of seconds stands for these minutes here.
"""

import contextlib
import io
import statistics
import tempfile
import time
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, interleaved, library, medians, quiet_arguments, report

WIDTH = 2236
BATCH = 32
# steps of a tenth of a second or so: as long as the reference takes for a checkpoint, and longer
EVERY = 10
CHECKPOINTS = 4  # and one more after the last step
FIRST = 3  # steps that warm up
PAUSE = 3  # seconds before the step that a checkpoint follows: see above
ROUNDS = 4

LABELS = {
    "standstill": ("training stands still", "ms a checkpoint"),
    "end": ("from the last step to the end of train()", "ms"),
    "all": ("all standstill of a run, its end too", f"ms for {CHECKPOINTS + 1} checkpoints"),
    "cost": ("processor time beside the steps", "ms a checkpoint"),
    "last": ("processor time of the last checkpoint", "ms"),
    "step": ("a step before the first checkpoint, by its thread", "ms"),
    "beside": ("a step after a checkpoint, by its thread", "ms"),
}


class FourLayers(nn.Module):
    """Four square layers of 5 million weights each."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4))
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the mean of the outputs, for `x` of shape (batch, width)."""
        outputs = self.layers(x)
        return {"loss": outputs.square().mean(), "logits": outputs}


class Clocks(NamedTuple):
    """Seconds on the wall, of the processor for the process, and for this thread of it."""

    wall: float
    process: float
    thread: float

    @classmethod
    def now(cls) -> "Clocks":
        """Look at all three."""
        return cls(time.perf_counter(), time.process_time(), time.thread_time())

    def since(self, earlier: "Clocks") -> "Clocks":
        """Return the time that has passed."""
        return Clocks(*(mine - its for mine, its in zip(self, earlier, strict=True)))


class Times:
    """Read the clocks at the beginning and at the end of each step, by the number of steps done."""

    def __init__(self):
        self.begins: dict[int, Clocks] = {}
        self.ends: dict[int, Clocks] = {}

    def costs(self, returned: Clocks) -> dict[str, float]:
        """Seconds, by the names in `LABELS`.

        Args:
            returned: the clocks when `train()` had returned.
        """
        last = EVERY * (CHECKPOINTS + 1)
        saved = [EVERY * number for number in range(1, CHECKPOINTS + 1)]
        between = {
            step: self.begins[step].since(self.ends[step])
            for step in self.ends
            if step in self.begins
        }
        steps = {step: self.ends[step].since(self.begins[step - 1]).thread for step in self.ends}
        without_save = [each for step, each in between.items() if step not in saved]
        wait, in_thread = (
            statistics.median(values)
            for values in zip(*((times.wall, times.thread) for times in without_save), strict=True)
        )
        standstills = [between[step].wall - wait for step in saved]
        end, training = returned.since(self.ends[last]), self.ends[last].since(self.ends[EVERY])
        trained = sum(steps[step] + in_thread for step in range(EVERY + 1, last + 1))
        return {
            "standstill": statistics.median(standstills),
            "end": end.wall,
            "all": sum(standstills) + end.wall,
            "cost": (training.process - trained) / CHECKPOINTS,
            "last": end.process,
            "step": statistics.median(steps[step] for step in range(FIRST, EVERY + 1)),
            "beside": statistics.median(steps[step + 1] for step in saved),
        }


def training(name: str, dataset: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Run one training with checkpoints; see `Times.costs`."""
    api = library(name)
    times = Times()

    class Clock(api.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if (state.global_step + 1) % EVERY == 0:
                time.sleep(PAUSE)
            times.begins[state.global_step] = Clocks.now()

        def on_step_end(self, args, state, control, **kwargs):
            times.ends[state.global_step] = Clocks.now()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.redirect_stdout(io.StringIO()):
        saving = {"save_strategy": "steps", "save_steps": EVERY, "save_total_limit": 2}
        steps = EVERY * (CHECKPOINTS + 1)
        arguments = quiet_arguments(
            name, folder, per_device_train_batch_size=BATCH, max_steps=steps, **saving
        )
        trainer: Any = api.Trainer(
            FourLayers(),
            arguments,
            train_dataset=dataset,
            data_collator=default_collate,
            callbacks=[Clock()],
        )
        trainer.train()
        return times.costs(Clocks.now())


def main() -> list[Figure]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    dataset = [{"x": x} for x in torch.randn(4 * BATCH, WIDTH, generator=generator)]
    measured = interleaved(
        ROUNDS, {name: lambda name=name: training(name, dataset) for name in LIBRARIES}
    )
    rows: list[tuple[str, str]] = []
    results: dict[str, Any] = {}
    for quantity, (label, unit) in LABELS.items():
        rounds = {name: [each[quantity] for each in values] for name, values in measured.items()}
        seconds = medians(rounds)
        ratio = seconds["lightrainer"] / seconds["transformers"]
        rows += [
            (f"{name}, {label}", f"{value * 1e3:6.0f} {unit}") for name, value in seconds.items()
        ]
        rows.append((f"lightrainer / transformers, {label}", f"{ratio:.2f}"))
        results[quantity] = {"seconds": seconds, "ratio": ratio, "rounds": rounds}
    figures = [
        Figure(
            "training stands still for a checkpoint of 240 MB", results["standstill"]["ratio"], 0.2
        ),
        Figure(
            "all standstill of a run with five of them, its end too", results["all"]["ratio"], 0.2
        ),
        Figure("wait for the last checkpoint at the end of train()", results["end"]["ratio"], 0.7),
        Figure(
            "processor time of a checkpoint while training goes on", results["cost"]["ratio"], 1.5
        ),
        Figure("processor time of the last checkpoint", results["last"]["ratio"], 1.5),
    ]
    return report("checkpoint", rows, results, figures)


if __name__ == "__main__":
    main()
