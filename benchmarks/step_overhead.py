"""The time of one training step beyond that of a bare loop: (lightrainer - bare) / (reference - bare).

A tiny model, so that nearly all of a step is overhead; fused AdamW, clipping, a linear schedule, one thread. Bare loop,
reference and lightrainer take turns in one process. The promise is at most 1.0, the goal 0.5.
"""

import contextlib
import io
import tempfile
import time

import torch
from torch.utils.data import DataLoader, default_collate

from .common import LIBRARIES, TinyModel, interleaved, library, medians, quiet_arguments, report, tiny_dataset

STEPS = 1500
SKIPPED = 200  # the first steps warm up caches and the allocator
ROUNDS = 7
BATCH = 8


def bare_loop(dataset: list) -> float:
    """Seconds per step of the shortest loop that does the same work."""
    torch.manual_seed(0)
    model = TinyModel().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=default_collate)
    total = torch.tensor(0.0)
    begin = 0.0
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        loss.backward()
        total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == SKIPPED:
            begin = time.perf_counter()
    return (time.perf_counter() - begin) / (STEPS - SKIPPED)


def trainer_loop(name: str, dataset: list) -> float:
    """Seconds per step of a library's trainer, between two calls of `on_step_end`."""
    api = library(name)
    times = {}

    class Clock(api.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (SKIPPED, STEPS):
                times[state.global_step] = time.perf_counter()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        arguments = quiet_arguments(name, folder, max_steps=STEPS, per_device_train_batch_size=BATCH)
        trainer = api.Trainer(
            TinyModel(), arguments, train_dataset=dataset, data_collator=default_collate, callbacks=[Clock()]
        )
        trainer.train()
    return (times[STEPS] - times[SKIPPED]) / (STEPS - SKIPPED)


def main() -> None:
    torch.set_num_threads(1)
    dataset = tiny_dataset(STEPS * BATCH)
    candidates = {"bare": lambda: bare_loop(dataset)}
    candidates |= {name: lambda name=name: trainer_loop(name, dataset) for name in LIBRARIES}
    measured = interleaved(ROUNDS, candidates)
    step = {name: value * 1e6 for name, value in medians(measured).items()}
    ratio = (step["lightrainer"] - step["bare"]) / (step["transformers"] - step["bare"])
    rows = [(f"{name}, one step", f"{value:7.1f} us") for name, value in step.items()]
    rows.append(("(lightrainer - bare) / (transformers - bare)", f"{ratio:.2f}"))
    rounds = {name: [round(value * 1e6, 1) for value in values] for name, values in measured.items()}
    report("step_overhead", rows, {"microseconds": step, "ratio": ratio, "rounds": rounds})


if __name__ == "__main__":
    main()
