"""Logs: contents, intervals, trackers."""

import logging
import math
from pathlib import Path
from typing import Any

import torch

from helpers.contract.effects import (
    Effect,
    Observation,
    Place,
    becomes,
    built,
    logged,
    make,
    of_arguments,
    one_of_four,
    steps_with,
    trained,
)
from helpers.contract.of_execution import Words
from helpers.loggers import recorded_clients
from helpers.trainer.tiny_trainings import Tiny

losses = trained(steps_with("loss"))


class SometimesNotANumber(Tiny):
    """Its loss is NaN at some of the batches; the gradients are not."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        outputs["loss"] = outputs["loss"] + torch.where((x[:, 0] > 1).any(), torch.nan, 0.0)
        return outputs


class TwoLosses(Tiny):
    """Returns a second loss."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        return {**outputs, "half_loss": outputs["loss"] / 2} if "loss" in outputs else outputs


def _level(given: dict[str, Any], place: Place) -> int:
    """The level of the package's logger, after a Trainer was made."""
    logging.getLogger("lightrainer").setLevel(logging.WARNING)
    make(given, place)
    return logging.getLogger("lightrainer").level


def _callbacks(trainer: Any) -> set[str]:
    names = {type(callback).__name__ for callback in trainer.callback_handler.callbacks}
    return names & {"ProgressCallback", "PrinterCallback"}


def _written_for_tensorboard(trainer: Any) -> bool:
    return any(Path(trainer.args.output_dir).rglob("events.out.tfevents.*"))


def _where(given: dict[str, Any], place: Place) -> list[str]:
    """Folders, beside that of the run, in which TensorBoard finds something."""
    place.folder.mkdir(parents=True)
    place.patch.chdir(place.folder)
    make({**given, "output_dir": "out"}, place).train()
    return sorted(
        {path.parts[0] for path in map(relative(place.folder), place.folder.rglob("events.out.*"))}
    )


def relative(folder: Path) -> Any:
    return lambda path: path.relative_to(folder)


def told_to_trackio(function: str, option: str) -> Observation:
    """Return the value that a stand-in for the tracker's client gets for an option of a
    function.
    """

    def observe(given: dict[str, Any], place: Place) -> Any:
        record = recorded_clients.trackio(place.patch)
        make(given, place).train()
        return next(
            (kwargs.get(option) for name, _, kwargs in record.calls if name == function), "no call"
        )

    return observe


TRACKIO = {"report_to": "trackio"}


ENTRIES: dict[str, Effect] = {
    "logging_strategy": Effect("epoch", losses, becomes([1, 2, 3, 4], [4])),
    "logging_steps": Effect(2, losses, becomes([], [2, 4])),
    "logging_first_step": Effect(True, losses, becomes([3], [1, 3]), {"logging_steps": 3}),
    "log_on_each_node": Effect(
        False,
        of_arguments(lambda args: args.should_log, kind=one_of_four(2, 0)),
        becomes(True, False),
    ),
    "logging_nan_inf_filter": Effect(
        False,
        trained(
            lambda trainer: any(map(math.isnan, logged("loss")(trainer))),
            model=SometimesNotANumber,
        ),
        becomes(False, True),
    ),
    "include_num_input_tokens_seen": Effect(
        "all",
        trained(lambda trainer: trainer.state.num_input_tokens_seen, model=Words),
        becomes(0, 16 * 8),
    ),
    "record_model_losses": Effect(
        True,
        trained(
            lambda trainer: any("half_loss" in entry for entry in trainer.state.log_history),
            model=TwoLosses,
        ),
        becomes(False, True),
    ),
    "log_level": Effect("debug", _level, becomes(logging.WARNING, logging.DEBUG)),
    "log_level_replica": Effect(
        "error",
        of_arguments(lambda args: args.get_process_log_level(), kind=one_of_four(1, 1)),
        becomes(logging.WARNING, logging.ERROR),
    ),
    "disable_tqdm": Effect(
        True, built(_callbacks), becomes({"ProgressCallback"}, {"PrinterCallback"})
    ),
    "report_to": Effect("tensorboard", trained(_written_for_tensorboard), becomes(False, True)),
    "logging_dir": Effect(
        "elsewhere", _where, becomes(["out"], ["elsewhere"]), {"report_to": "tensorboard"}
    ),
    "run_name": Effect("first", told_to_trackio("init", "name"), becomes(None, "first"), TRACKIO),
    "project": Effect(
        "mine", told_to_trackio("init", "project"), becomes("huggingface", "mine"), TRACKIO
    ),
    "trackio_space_id": Effect(
        "mine", told_to_trackio("init", "space_id"), becomes(None, "mine"), TRACKIO
    ),
    "trackio_bucket_id": Effect(
        "me/data", told_to_trackio("init", "bucket_id"), becomes(None, "me/data"), TRACKIO
    ),
    "trackio_static_space_id": Effect(
        False, told_to_trackio("freeze", "project"), becomes("huggingface", "no call"), TRACKIO
    ),
}
