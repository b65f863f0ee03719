"""Checkpoints: intervals, contents, resuming."""

import signal
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from helpers.contract.effects import (
    Effect,
    Place,
    becomes,
    checkpoints,
    make,
    of_arguments,
    one_of_four,
    trained,
)
from helpers.trainer.tiny_trainings import At, Tiny
from lightrainer import TrainerCallback
from lightrainer.callbacks import ExportableState

ONE, TWO, THREE, FOUR = (f"checkpoint-{step}" for step in (1, 2, 3, 4))
EACH_STEP = {"save_strategy": "steps", "save_steps": 1}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, **EACH_STEP}


def worse_and_worse() -> Any:
    """Metrics that fall from one evaluation to the next."""
    scores = iter([0.9, 0.8, 0.7, 0.6])
    return lambda prediction: {"score": next(scores)}


def _kinds_of_files(trainer: Any) -> tuple[bool, bool]:
    """Return True for weights in a checkpoint, and for the states that a resumption needs."""
    files = {path.name for path in Path(trainer.args.output_dir, FOUR).iterdir()}
    return "model.safetensors" in files, {"optimizer.pt", "scheduler.pt", "rng_state.pth"} <= files


def _whose_weights(trainer: Any) -> list[str]:
    """The checkpoints with the weights that the model has at the end."""
    now = trainer.model.state_dict()
    stored = {
        name: load_file(Path(trainer.args.output_dir, name, "model.safetensors"))
        for name in checkpoints(trainer)
    }
    return [
        name
        for name, saved in stored.items()
        if all(torch.equal(saved[key], now[key]) for key in now)
    ]


class Recording(Tiny):
    """Records the samples that it is trained on."""

    def __init__(self):
        super().__init__()
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.seen += x[:, 0].tolist()
        return super().forward(x, labels)


def _samples_after_resuming(given: dict[str, Any], place: Place) -> str:
    """Return the half of an epoch that a training resumed from the second of four steps sees."""
    whole = make({**given, **EACH_STEP}, place, model=Recording)
    whole.train()
    resumed = make(given, place, model=Recording)
    resumed.train(resume_from_checkpoint=str(place.folder / TWO))
    parts = {"first half": whole.model.seen[:8], "second half": whole.model.seen[8:]}
    return next(name for name, samples in parts.items() if samples == resumed.model.seen)


class Counting(TrainerCallback, ExportableState):
    """Counts steps, and takes the count into checkpoints."""

    def __init__(self, count: int = 0):
        self.count = count

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"args": {"count": self.count}, "attributes": {}}


def _count_after_resuming(given: dict[str, Any], place: Place) -> int:
    """Return the count of a training resumed from the second of four steps."""
    callbacks: Any = lambda: [Counting()]
    make({**given, **EACH_STEP}, place, callbacks=callbacks).train()
    resumed = make(given, place, callbacks=callbacks)
    resumed.train(resume_from_checkpoint=str(place.folder / TWO))
    return next(
        callback.count
        for callback in resumed.callback_handler.callbacks
        if isinstance(callback, Counting)
    )


def _after_a_signal(given: dict[str, Any], place: Place) -> tuple[int, list[str]]:
    """Steps and checkpoints of a training that gets SIGTERM in its second step, in a script that
    continues.
    """
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    ask = At("on_step_end", lambda *event: signal.raise_signal(signal.SIGTERM), step=2)
    try:
        trainer = make(given, place, callbacks=lambda: [ask])
        trainer.train()
    finally:
        signal.signal(signal.SIGTERM, before)
    return trainer.state.global_step, checkpoints(trainer)


saved = trained(checkpoints)
best = trained(lambda trainer: trainer.state.best_metric, compute_metrics=worse_and_worse)

ENTRIES: dict[str, Effect] = {
    "save_strategy": Effect("no", saved, becomes([FOUR], [])),
    "save_steps": Effect(3, saved, becomes([FOUR], [THREE, FOUR]), {"save_strategy": "steps"}),
    "save_only_model": Effect(
        True,
        trained(_kinds_of_files),
        becomes((True, True), (True, False)),
        {"save_strategy": "epoch"},
    ),
    "save_on_each_node": Effect(
        True,
        of_arguments(lambda args: args.should_save, kind=one_of_four(2, 0)),
        becomes(False, True),
    ),
    "save_total_limit": Effect(
        2, saved, becomes([ONE, TWO, THREE, FOUR], [THREE, FOUR]), EACH_STEP
    ),
    "enable_jit_checkpoint": Effect(True, _after_a_signal, becomes((4, []), (2, [TWO]))),
    "load_best_model_at_end": Effect(
        True,
        trained(_whose_weights, compute_metrics=worse_and_worse),
        becomes([FOUR], [ONE]),
        {**EVALUATED, "metric_for_best_model": "score"},
    ),
    "metric_for_best_model": Effect("score", best, becomes(None, 0.9), EVALUATED),
    "greater_is_better": Effect(
        False, best, becomes(0.9, 0.6), {**EVALUATED, "metric_for_best_model": "score"}
    ),
    "ignore_data_skip": Effect(True, _samples_after_resuming, becomes("second half", "first half")),
    "restore_callback_states_from_checkpoint": Effect(True, _count_after_resuming, becomes(2, 4)),
}
