"""Each option of evaluation and prediction gives the arrays of the reference, bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from helpers.comparing.bit_differences import differences, without_clock
from helpers.parity.harness import Case, assert_parity, build
from helpers.parity.parity_datasets import MeasuredStream, Stream, pad, points, sentences
from helpers.parity.parity_models import Classifier


class Layers(nn.Module):
    """Returns what large models return: logits, a tuple of layers, a dict, and a list of values
    of other shapes.
    """

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(29, 6)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(6, 29)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: Any = None, labels: Any = None
    ) -> dict[str, Any]:
        first = self.embedding(input_ids)
        second = torch.tanh(self.dropout(first))
        logits = self.head(second)
        outputs: dict[str, Any] = {
            "logits": logits,
            "layers": (first, second),
            "parts": {"longest": logits.argmax(-1), "pooled": second.mean(dim=1)},
            "several": [second.sum(dim=(1, 2)), (logits.argmax(-1) > 3, second.half())],
        }
        if labels is not None:
            outputs["loss"] = functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=-100
            )
        return outputs


class Two(Classifier):
    """Two columns of labels, of which the arguments are told."""

    def forward(
        self, x: torch.Tensor, kind: Any = None, span: Any = None
    ) -> dict[str, torch.Tensor]:
        logits = self.logits(x)
        if kind is None or span is None:
            return {"logits": logits}
        loss = functional.cross_entropy(logits, kind) + (logits.sum(dim=1) - span).square().mean()
        return {"loss": loss, "logits": logits, "total": logits.sum(dim=1)}


class OnlyLogits(Classifier):
    """Has no labels in its signature and returns its logits alone, in a tuple."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.logits(x),)


class Own(nn.Module):
    """Returns a loss without labels, as contrastive models do when `return_loss` is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, return_loss: bool = True) -> dict[str, torch.Tensor]:
        value = self.layer(x)
        return {"loss": value.square().mean(), "value": value}


def two_columns(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    items = points(count, seed)
    return [{"x": item["x"], "kind": item["labels"], "span": item["x"].sum()} for item in items]


def without_labels(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": item["x"]} for item in points(count, seed)]


TOKENS = {"data_collator": pad}
NO: dict[str, Any] = {}
APART, IN_TWOS = {"eval_do_concat_batches": False}, {"eval_accumulation_steps": 2}
WITH_BOTH = {"include_for_metrics": ["inputs", "loss"]}
CASES: dict[str, tuple[type[nn.Module], Any, dict[str, Any], dict[str, Any]]] = {
    "different lengths, nested": (Layers, lambda: sentences(11, 5), NO, TOKENS),
    "one sample in the last batch": (Layers, lambda: sentences(9, 5), NO, TOKENS),
    "moved to the host now and then": (Layers, lambda: sentences(18, 5), IN_TWOS, TOKENS),
    "batches apart": (Layers, lambda: sentences(11, 5), APART, TOKENS),
    "batches apart, moved to the host": (
        Layers,
        lambda: sentences(18, 5),
        {**APART, **IN_TWOS},
        TOKENS,
    ),
    "several columns of labels": (
        Two,
        lambda: two_columns(7, 3),
        {"label_names": ["kind", "span"]},
        NO,
    ),
    "columns of labels in another order": (
        Two,
        lambda: two_columns(7, 3),
        {"label_names": ["span", "kind"]},
        {},
    ),
    "one column of two": (Two, lambda: two_columns(7, 3), {"label_names": ["kind"]}, NO),
    "names that are not in the data": (
        Classifier,
        lambda: points(7, 3),
        {"label_names": ["target"]},
        NO,
    ),
    "no names": (Classifier, lambda: points(7, 3), {"label_names": []}, NO),
    "no labels": (Classifier, lambda: without_labels(7, 3), NO, NO),
    "a model that knows no labels": (OnlyLogits, lambda: without_labels(7, 3), NO, NO),
    "a loss without labels": (Own, lambda: without_labels(7, 3), NO, NO),
    "only the loss": (Layers, lambda: sentences(7, 3), {"prediction_loss_only": True}, TOKENS),
    "with both, batches apart": (Layers, lambda: sentences(11, 5), {**APART, **WITH_BOTH}, TOKENS),
    "dropping the last": (
        Layers,
        lambda: sentences(11, 5),
        {"dataloader_drop_last": True},
        TOKENS,
    ),
    "a stream": (Classifier, lambda: Stream(points(11, 5)), NO, NO),
    "a stream of different lengths": (Layers, lambda: Stream(sentences(11, 5)), NO, TOKENS),
    "a stream that knows its length": (Classifier, lambda: MeasuredStream(points(11, 5)), NO, NO),
}


def as_arrays(value: Any) -> Any:
    """A copy, with tensors as arrays: what a metric function was given may be used again by the
    one who gave it.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().float().numpy().copy()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        return type(value)(as_arrays(part) for part in value)
    return (
        {key: as_arrays(part) for key, part in value.items()} if isinstance(value, dict) else value
    )


def outcome(api: Any, folder: Any, name: str, **keywords: Any) -> dict[str, Any]:
    """All that comes out of `evaluate` and `predict`, and what the metric function was given."""
    model, data, arguments, extras = CASES[name]
    received: list[Any] = []

    def compute(prediction: Any) -> dict[str, float]:
        received.append([as_arrays(part) for part in prediction])
        received.append([type(prediction.inputs).__name__, type(prediction.losses).__name__])
        return {"number": len(received), "numpy": np.float32(0.5), "tensor": torch.tensor(2)}

    case = Case(
        model,
        lambda: {"eval_dataset": data(), **extras},
        arguments,
        lambda api: {"compute_metrics": compute},
    )
    trainer = build(api, case, folder)
    evaluated = without_clock(trainer.evaluate(**keywords))
    predicted = trainer.predict(data(), **keywords)
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation", **keywords)
    return {
        "evaluated": evaluated,
        "given": received,
        "predictions": predicted.predictions,
        "label_ids": predicted.label_ids,
        "metrics": without_clock(predicted.metrics),
        "loop": [
            output.predictions,
            output.label_ids,
            without_clock(output.metrics),
            output.num_samples,
        ],
        "history": [without_clock(entry) for entry in trainer.state.log_history],
        "training": trainer.model.training,
    }


def both(reference: Any, ours: Any, folder: Any, name: str, **keywords: Any) -> dict[str, Any]:
    expected, actual = (
        outcome(api, folder / api.__name__, name, **keywords) for api in (reference, ours)
    )
    mismatches = differences(expected, actual)
    assert not mismatches, "reference != lightrainer:\n" + "\n".join(mismatches[:20])
    return actual


@pytest.mark.parametrize("name", CASES)
def test_evaluation_option(reference, ours, tmp_path, name):
    both(reference, ours, tmp_path, name)


@pytest.mark.parametrize(
    "keys", [["layers"], ["layers", "parts", "several"], ["logits", "parts", "several"], []]
)
def test_outputs_that_are_ignored(reference, ours, tmp_path, keys):
    both(reference, ours, tmp_path, "different lengths, nested", ignore_keys=keys)


def test_evaluation_with_another_prefix(reference, ours, tmp_path):
    """Of the evaluation, and of the prediction; a metric whose name begins with it keeps its
    name.
    """
    result = both(reference, ours, tmp_path, "several columns of labels", metric_key_prefix="numb")
    assert {"numb_loss", "number", "numb_numpy"} <= set(result["metrics"]) | {"number"}


@pytest.mark.parametrize("inputs", [[], ["inputs", "loss"]], ids=["", "with inputs and losses"])
@pytest.mark.parametrize("count", [8, 11])
def test_metrics_batch_by_batch(reference, ours, tmp_path, inputs, count):
    """`batch_eval_metrics`: each batch is given as tensors, the last one with
    `compute_result=True`.
    """

    def outcome_of(api):
        received = []

        def compute(prediction, compute_result):
            assert all(isinstance(part, torch.Tensor) for part in prediction.label_ids)
            received.append([compute_result, as_arrays(list(prediction))])
            return {"batches": len(received)} if compute_result else {}

        arguments = {"batch_eval_metrics": True, "include_for_metrics": inputs}
        data = lambda: {"eval_dataset": points(count, 5)}
        case = Case(Classifier, data, arguments, lambda api: {"compute_metrics": compute})
        trainer = build(api, case, tmp_path / api.__name__)
        trainer.model.main_input_name = "x"
        metrics = without_clock(trainer.evaluate())
        prediction = trainer.predict(points(count, 5))
        loop = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation")
        predicted = [
            prediction.predictions,
            prediction.label_ids,
            without_clock(prediction.metrics),
        ]
        return [metrics, *predicted, loop.predictions, loop.label_ids, received]

    expected, actual = outcome_of(reference), outcome_of(ours)
    assert not differences(expected, actual)
    assert actual[0]["eval_batches"] == -(-count // 4)
    assert actual[4] is None


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(points(8, 5), batch_size=4),
        lambda: DataLoader(Stream(points(8, 5)), batch_size=4),
        lambda: list(DataLoader(points(8, 5), batch_size=4)),
    ],
    ids=["samples", "stream", "list"],
)
def test_metrics_batch_by_batch_with_the_loader_of_a_script(ours, tmp_path, loader):
    """Exactly the last batch is given with `compute_result=True`, in each evaluation."""
    flags = []

    def compute(prediction, compute_result):
        flags.append(compute_result)
        return {"batches": len(flags)} if compute_result else {}

    class WithOwnLoader(ours.Trainer):
        """Its loader does not say which batch is the last one."""

        def get_eval_dataloader(self, eval_dataset=None):
            return loader()

    case = Case(
        Classifier,
        lambda: {"eval_dataset": points(8, 5), "train_dataset": points(8, 5)},
        {"batch_eval_metrics": True, "max_steps": 1},
        lambda api: {"compute_metrics": compute},
        subclass=lambda base: WithOwnLoader,
    )
    trainer = build(ours, case, tmp_path)
    assert trainer.evaluate()["eval_batches"] == 2
    trainer.train()
    assert trainer.evaluate()["eval_batches"] == 4
    assert flags == [False, True] * 2


def test_datasets_by_name(reference, ours, tmp_path):
    """A dict in the place of the data, a dict given to `evaluate`, and the name of one of them."""

    def outcome_of(api):
        sets = {"near": points(6, seed=11), "far": points(9, seed=12)}
        trainer = build(
            api, Case(Classifier, lambda: {"eval_dataset": sets}), tmp_path / api.__name__
        )
        others = {"third": points(3, seed=13), "near": points(5, seed=14)}
        return [
            without_clock(trainer.evaluate()),
            without_clock(trainer.evaluate(others, metric_key_prefix="other")),
            without_clock(trainer.evaluate("far")),
            without_clock(trainer.evaluate("near", metric_key_prefix="here")),
            without_clock(
                trainer.evaluation_loop(trainer.get_eval_dataloader("far"), "Evaluation").metrics
            ),
            [without_clock(entry) for entry in trainer.state.log_history],
        ]

    expected, actual = outcome_of(reference), outcome_of(ours)
    assert not differences(expected, actual)
    assert "eval_far_loss" in actual[0]
    assert "eval_loss" in actual[2]


def test_datasets_by_name_are_evaluated_by_keyword(reference, ours, tmp_path):
    """An override of `evaluate` may take keywords only, and renames nothing."""

    def outcome_of(api):
        calls = []

        def subclass(base):
            class Own(base):
                def evaluate(self, *positional, **keywords):
                    calls.append((len(positional), sorted(keywords)))
                    return super().evaluate(*positional, **keywords)

            return Own

        sets = {"near": points(6, seed=11), "far": points(9, seed=12)}
        case = Case(
            Classifier,
            lambda: {"train_dataset": points(4), "eval_dataset": sets},
            {"eval_strategy": "epoch"},
            subclass=subclass,
        )
        trainer = build(api, case, tmp_path / api.__name__)
        trainer.train()
        trainer.evaluate(sets)
        return calls

    expected, actual = outcome_of(reference), outcome_of(ours)
    assert (0, ["eval_dataset", "ignore_keys", "metric_key_prefix"]) in expected
    assert actual == expected


def test_evaluation_with_a_custom_loader(reference, ours, tmp_path):
    """An override of `get_eval_dataloader`, and `evaluation_loop` called with a plain
    DataLoader.
    """
    # The reference cuts predictions by a global state that its last own loader in this process has
    # left behind.
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.GradientState._reset_state()

    def outcome_of(api):
        def subclass(base):
            class Own(base):
                def get_eval_dataloader(self, eval_dataset=None):
                    return DataLoader(points(7, 3), batch_size=3)

                def get_test_dataloader(self, test_dataset):
                    return DataLoader(test_dataset, batch_size=2)

            return Own

        trainer = build(api, Case(Classifier, dict, subclass=subclass), tmp_path / api.__name__)
        loop = trainer.evaluation_loop(DataLoader(points(5, 4), batch_size=4), "Evaluation")
        prediction = trainer.predict(points(5, 6))
        return [
            without_clock(trainer.evaluate()),
            [loop.predictions, loop.label_ids, without_clock(loop.metrics), loop.num_samples],
            [prediction.predictions, prediction.label_ids, without_clock(prediction.metrics)],
        ]

    expected, actual = outcome_of(reference), outcome_of(ours)
    assert not differences(expected, actual)


def test_evaluation_overrides(reference, ours, tmp_path):
    """`evaluation_loop` and `prediction_step`, called inside and outside of a training, with the
    same arguments.
    """
    calls = {reference.__name__: [], ours.__name__: []}

    def subclass(base):
        class Own(base):
            def evaluation_loop(self, dataloader, description, *positional, **keywords):
                self.note(
                    "loop",
                    description,
                    len(dataloader),
                    positional,
                    sorted(keywords.items(), key=str),
                )
                output = super().evaluation_loop(dataloader, description, *positional, **keywords)
                output.metrics["eval_own"] = 1.5
                return output

            def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
                self.note("step", sorted(inputs), prediction_loss_only, ignore_keys, model.training)
                loss, logits, labels = super().prediction_step(
                    model, inputs, prediction_loss_only, ignore_keys
                )
                return (
                    loss,
                    None if logits is None else logits * 2,
                    None if labels is None else labels + 1,
                )

            def note(self, *what):
                calls[
                    reference.__name__ if issubclass(base, reference.Trainer) else ours.__name__
                ].append(what)

        return Own

    arguments = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "own"}
    data = {"train_dataset": points(14), "eval_dataset": points(6, seed=11)}
    extras = {"compute_metrics": lambda prediction: {"sum": float(prediction.label_ids.sum())}}
    case = Case(
        Classifier,
        lambda: dict(data),
        arguments,
        lambda api: dict(extras),
        subclass,
        lambda: points(5, 6),
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert any("eval_own" in entry for entry in actual.history)
    assert calls[reference.__name__] == calls[ours.__name__]
    assert len(calls[ours.__name__]) > 8
