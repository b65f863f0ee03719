"""Evaluation: intervals, batches, inputs of the metrics."""

from typing import Any

import numpy as np

from helpers.contract.effects import Effect, Place, becomes, built, make, steps_with, trained
from helpers.trainer.tiny_trainings import points
from lightrainer import Trainer
from lightrainer.facade.evaluation.loop import Evaluation

evaluations = trained(steps_with("eval_loss"))
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1}


def _predictions(given: dict[str, Any], place: Place) -> str:
    """Return the type of the predictions of six samples in two batches."""
    return type(make(given, place).predict(points(6)).predictions).__name__


def _batches(given: dict[str, Any], place: Place) -> int:
    """Return the number of batches for six samples."""
    trainer, sizes = make(given, place), []
    trainer.model.register_forward_hook(
        lambda module, args, output: sizes.append(len(output["logits"]))
    )
    trainer.evaluate()
    assert sum(sizes) == 6
    return len(sizes)


def _moves(given: dict[str, Any], place: Place) -> int:
    """Count the moves of predictions to main memory; the last one is at the end."""
    moves, to_host = [], Evaluation._to_host
    place.patch.setattr(
        Evaluation, "_to_host", lambda evaluation: (moves.append(1), to_host(evaluation))
    )
    make(given, place).evaluate()
    place.patch.setattr(Evaluation, "_to_host", to_host)
    return len(moves)


def _given_to_metrics(given: dict[str, Any], place: Place) -> tuple[bool, bool]:
    """Return True for inputs, and for losses, that metrics get."""
    received = []

    def metrics(prediction: Any) -> dict[str, float]:
        received.append(
            (np.shape(prediction.inputs) == (6, 8), np.shape(prediction.losses) == (6,))
        )
        return {}

    trainer = make(given, place, compute_metrics=lambda: metrics)
    trainer.model.main_input_name = "x"
    trainer.evaluate()
    return received[0]


def _calls_of_metrics(given: dict[str, Any], place: Place) -> list[tuple[int, Any]]:
    """Return the samples of each call, and `compute_result`."""
    calls = []

    def metrics(prediction: Any, compute_result: bool | None = None) -> dict[str, float]:
        calls.append((len(prediction.predictions), compute_result))
        return {}

    make(given, place, compute_metrics=lambda: metrics).evaluate()
    return calls


class Speaking(Trainer):
    """Predicts text."""

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss, _, labels = super().prediction_step(model, inputs, *args, **kwargs)
        return loss, list("word")[: len(labels)], labels


def _sentences(given: dict[str, Any], place: Place) -> Any:
    """Return predictions that are no tensors: six, in batches of four and two."""
    try:
        return make(given, place, trainer=lambda: Speaking).predict(points(6)).predictions
    except Exception as error:
        return type(error).__name__


ENTRIES: dict[str, Effect] = {
    "eval_strategy": Effect("epoch", evaluations, becomes([], [4])),
    "eval_steps": Effect(2, evaluations, becomes([1, 2, 3, 4], [2, 4]), {"eval_strategy": "steps"}),
    "eval_delay": Effect(3, evaluations, becomes([1, 2, 3, 4], [3, 4]), EACH_STEP),
    "per_device_eval_batch_size": Effect(2, _batches, becomes(1, 3)),
    "prediction_loss_only": Effect(True, _predictions, becomes("ndarray", "NoneType")),
    "eval_on_start": Effect(True, evaluations, becomes([4], [0, 4]), {"eval_strategy": "epoch"}),
    "eval_do_concat_batches": Effect(False, _predictions, becomes("ndarray", "list")),
    "eval_use_gather_object": Effect(
        True, _sentences, becomes("TypeError", ["w", "o", "r", "d", "w", "o"])
    ),
    "eval_accumulation_steps": Effect(1, _moves, becomes(1, 3)),
    "include_for_metrics": Effect(
        ["inputs", "loss"], _given_to_metrics, becomes((False, False), (True, True))
    ),
    "eval_aggregate": Effect(
        "mean",
        built(
            lambda trainer: "eval_mean_loss" in trainer.evaluate(),
            eval_dataset=lambda: {"a": points(4)},
        ),
        becomes(False, True),
    ),
    "batch_eval_metrics": Effect(
        True, _calls_of_metrics, becomes([(6, None)], [(4, False), (2, True)])
    ),
}
