"""Evaluations, from the history of logs."""

from transformers.modelcard import parse_log_history

from lightrainer.facade.hub.card_text import evaluations

HISTORY = [
    {"loss": 2.0, "step": 1, "epoch": 0.5},
    {"eval_loss": 1.5, "eval_f1_macro": 0.25, "eval_runtime": 1.0, "step": 1, "epoch": 0.5},
    {"loss": 1.0, "step": 2, "epoch": 1.0},
    {"eval_loss": 1.25, "eval_f1_macro": 0.5, "eval_samples_per_second": 2.0, "step": 2, "epoch": 1.0},
    {"train_runtime": 3.0, "train_loss": 1.5, "step": 2, "epoch": 1.0},
]


def test_the_numbers_are_those_of_the_reference():
    _, lines, results = parse_log_history(HISTORY)
    for row, line in zip(evaluations(HISTORY), lines, strict=True):
        assert (row.step, row.epoch, row.training_loss) == (line["Step"], line["Epoch"], line["Training Loss"])
        assert [row.metrics["loss"], row.metrics["f1_macro"]] == [line["Validation Loss"], line["F1 Macro"]]
    assert list(evaluations(HISTORY)[-1].metrics.values()) == list(results.values())
