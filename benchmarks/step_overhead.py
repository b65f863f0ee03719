"""The time of one training step beyond that of a bare loop: (lightrainer - bare) / (reference - bare).

A tiny model, so that nearly all of a step is overhead; fused AdamW, clipping, a linear schedule, one thread. Bare loop,
reference and lightrainer take turns in one process. The promise is at most 1.0, the goal 0.5.

Each step is timed by the clock on the wall and by the time of the processor, which other programs disturb less: on a
quiet machine the two agree.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, default_collate

from .common import LIBRARIES, TinyModel, interleaved, library, medians, quiet_arguments, report, tiny_dataset

STEPS = 500
SKIPPED = 100  # the first steps warm up caches and the allocator
ROUNDS = 15  # many short ones: what disturbs the machine then meets all three alike
BATCH = 8


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def now() -> list[float]:
    """All clocks, in seconds."""
    return [clock() for clock in CLOCKS.values()]


def per_step(begin: list[float], end: list[float]) -> list[float]:
    """Seconds per measured step, by each clock."""
    return [(last - first) / (STEPS - SKIPPED) for first, last in zip(begin, end, strict=True)]


def bare_loop(dataset: list) -> list[float]:
    """Seconds per step of the shortest loop that does the same work."""
    torch.manual_seed(0)
    model = TinyModel().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=default_collate)
    total = torch.tensor(0.0)
    begin = now()
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        loss.backward()
        total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == SKIPPED:
            begin = now()
    return per_step(begin, now())


def trainer_loop(name: str, dataset: list) -> list[float]:
    """Seconds per step of a library's trainer, between two calls of `on_step_end`."""
    api = library(name)
    times = {}

    class Clock(api.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (SKIPPED, STEPS):
                times[state.global_step] = now()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        arguments = quiet_arguments(name, folder, max_steps=STEPS, per_device_train_batch_size=BATCH)
        trainer = api.Trainer(
            TinyModel(), arguments, train_dataset=dataset, data_collator=default_collate, callbacks=[Clock()]
        )
        trainer.train()
    return per_step(times[SKIPPED], times[STEPS])


def main() -> None:
    torch.set_num_threads(1)
    dataset = tiny_dataset(STEPS * BATCH)
    candidates = {"bare": lambda: bare_loop(dataset)}
    candidates |= {name: lambda name=name: trainer_loop(name, dataset) for name in LIBRARIES}
    measured = interleaved(ROUNDS, candidates)
    rows, results = [], {}
    for position, clock in enumerate(CLOCKS):
        rounds = {name: [values[position] * 1e6 for values in each] for name, each in measured.items()}
        step = medians(rounds)
        ratio = (step["lightrainer"] - step["bare"]) / (step["transformers"] - step["bare"])
        rows += [(f"{name}, one step, {clock} clock", f"{value:7.1f} us") for name, value in step.items()]
        rows.append((f"(lightrainer - bare) / (transformers - bare), {clock} clock", f"{ratio:.2f}"))
        results[clock] = {"microseconds": step, "ratio": ratio, "rounds": rounds}
    report("step_overhead", rows, results)


if __name__ == "__main__":
    main()
