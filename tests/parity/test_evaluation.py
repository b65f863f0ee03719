"""Evaluation gives the same metrics and disturbs the training no more; see argument_effects.py
for when it is due.
"""

from typing import Any

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_parity
from helpers.parity.parity_datasets import (
    MeasuredStream,
    NoisyPoints,
    Stream,
    point_data,
    points,
    sentence_data,
    sentences,
)
from helpers.parity.parity_models import Classifier, gpt2


def test_logits_are_prepared_for_the_metrics(reference, ours, tmp_path):
    """`preprocess_logits_for_metrics` sees tensors; what it returns is what the metrics and
    `predict` see.
    """
    shapes = []

    def prepare(logits, labels):
        assert isinstance(logits, torch.Tensor)
        assert isinstance(labels, torch.Tensor)
        return logits.argmax(dim=-1)

    def metrics(prediction):
        shapes.append(prediction.predictions.shape)
        return {"right": int((prediction.predictions == prediction.label_ids).sum())}

    extras = {"preprocess_logits_for_metrics": prepare, "compute_metrics": metrics}
    case = Case(
        gpt2,
        sentence_data,
        {"eval_strategy": "epoch"},
        lambda api: dict(extras),
        test=lambda: sentences(7, seed=22),
    )
    assert_parity(reference, ours, case, tmp_path)
    assert len(shapes) == 6
    assert shapes[:3] == shapes[3:]


@pytest.mark.parametrize(
    "event", ["on_step_end", "on_substep_end", "on_epoch_begin", "on_pre_optimizer_step"]
)
@pytest.mark.parametrize("data", [points, NoisyPoints], ids=["", "data that draws"])
def test_evaluation_in_the_middle_of_training(reference, ours, tmp_path, event, data):
    """A callback evaluates and predicts by itself; training continues as after the same calls in
    the reference.

    Also between two micro-batches, whose gradients are added up; dropout is on, and the data may
    draw random numbers.
    """
    predicted = []

    def extras(api):
        class EvaluateNow(api.TrainerCallback):
            trainer = None

        def hook(self, args, state, control, **kwargs):
            if state.global_step in (2, 3):
                self.trainer.evaluate(data(5, seed=41), metric_key_prefix="middle")
                predicted.append(self.trainer.predict(data(3, seed=42)).predictions)

        setattr(EvaluateNow, event, hook)
        return {"callbacks": [EvaluateNow()]}

    def subclass(base):
        class Known(base):
            def __init__(self, *positional, **keywords):
                super().__init__(*positional, **keywords)
                for callback in self.callback_handler.callbacks:
                    if hasattr(callback, "trainer"):
                        callback.trainer = self

        return Known

    case = Case(
        Classifier,
        point_data,
        {"gradient_accumulation_steps": 2, "num_train_epochs": 3},
        extras,
        subclass,
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    count = sum("middle_loss" in entry for entry in actual.history)
    assert count == (1 if event == "on_epoch_begin" else 2)
    assert not differences(predicted[:count], predicted[count:])


@pytest.mark.parametrize("count", [0, 3], ids=["no rows", "less than a batch"])
def test_evaluation_without_batches_draws_as_any_other(reference, ours, tmp_path, count):
    """Dropout of the steps that follow depends on the seed that each iteration of a loader draws."""
    case = Case(
        Classifier,
        lambda: {**point_data(), "eval_dataset": points(count)},
        {
            "eval_strategy": "steps",
            "eval_steps": 2,
            "dataloader_drop_last": True,
            "per_device_eval_batch_size": 4,
        },
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert not any("eval_loss" in entry for entry in actual.history)


class NoisyStream(Stream):
    """Draws for each item when it is read."""

    def __iter__(self):
        for item in self.items:
            yield {**item, "x": item["x"] + 0.1 * torch.randn(8)}


class DrawingClassifier(Classifier):
    """Draws in each forward pass, as masked autoencoders do, in evaluations too."""

    def forward(self, x, labels=None):
        return super().forward(x + 0.1 * torch.randn_like(x), labels)


@pytest.mark.parametrize(
    "eval_data", [NoisyPoints, lambda count: NoisyStream(points(count))], ids=["", "stream"]
)
def test_evaluation_draws_in_turn_with_the_model(reference, ours, tmp_path, eval_data):
    """Streams too: no batch more is read ahead than from data with a length."""
    case = Case(
        DrawingClassifier,
        lambda: {**point_data(), "eval_dataset": eval_data(11)},
        {"eval_strategy": "epoch", "per_device_eval_batch_size": 2},
        test=lambda: eval_data(9),
    )
    assert_parity(reference, ours, case, tmp_path)


def under_attack(base):
    """Evaluate inputs that are moved along their gradient, and leave the loss in its graph."""

    class Attacked(base):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            inputs = self._prepare_inputs(inputs)
            x = inputs["x"].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x, labels=inputs["labels"])["loss"], x)
            attacked = {**inputs, "x": x.detach() + 0.1 * gradient.sign()}
            return super().prediction_step(model, attacked, prediction_loss_only, ignore_keys)

    return Attacked


def field_data():
    """Samples to which the collator adds the gradient of a potential."""

    def collate(samples):
        batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
        x = batch["x"].requires_grad_()
        (field,) = torch.autograd.grad(x.cos().sum(), x)
        return {**batch, "x": x.detach() + field}

    rows = [{"x": x, "labels": torch.tensor(i % 3)} for i, x in enumerate(torch.randn(21, 8))]
    return {"train_dataset": rows, "eval_dataset": rows[:7], "data_collator": collate}


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_code_of_an_evaluation_computes_gradients(reference, ours, tmp_path, precision):
    """Only `Trainer.prediction_step` disables them: overrides, collators and functions of metrics
    may use them.
    """

    def prepare(logits, labels):
        logits = logits.float().requires_grad_()
        return torch.autograd.grad(logits.logsumexp(-1).sum(), logits)[0]

    case = Case(
        Classifier,
        field_data,
        {"eval_strategy": "epoch", **precision},
        lambda api: {"preprocess_logits_for_metrics": prepare, "compute_metrics": lambda _: {}},
        under_attack,
        test=lambda: points(7, seed=22),
    )
    assert_parity(reference, ours, case, tmp_path)


def test_losses_of_an_evaluation_may_have_a_graph(ours, tmp_path):
    """An override that leaves out `no_grad` and `detach`."""

    class Whole(ours.Trainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            outputs = model(**inputs)
            return outputs["loss"], outputs["logits"], inputs["labels"]

    arguments = ours.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    model = Classifier()
    result = Whole(model, arguments).predict(points(20))
    expected = ours.Trainer(model, arguments).predict(points(20))
    assert not differences(result.predictions, expected.predictions)
    assert result.metrics["test_loss"] == expected.metrics["test_loss"]


def test_evaluation_keeps_disabled_gradients(ours, tmp_path):
    """A script may disable them around `evaluate`, to save memory in an override."""
    modes = []

    class Noting(ours.Trainer):
        def prediction_step(self, *arguments, **more):
            modes.append(torch.is_grad_enabled())
            return super().prediction_step(*arguments, **more)

    def collate(samples):
        modes.append(torch.is_grad_enabled())
        return ours.default_data_collator(samples)

    arguments = ours.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    trainer = Noting(Classifier(), arguments, data_collator=collate)
    with torch.no_grad():
        trainer.evaluate(points(7))
    assert not any(modes)
    trainer.evaluate(points(7))
    assert len(modes) == 4
    assert modes[2:] == [True, True]
    assert torch.is_grad_enabled()


class SplitStream(MeasuredStream):
    """A stream with a length, whose items are divided over the workers."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        return iter(self.items[worker.id :: worker.num_workers])


class RoughBatches(torch.utils.data.BatchSampler):
    """Batches whose number is underestimated."""

    def __len__(self):
        return 1


class OwnLoader:
    """A loader that is no `DataLoader`, and underestimates its batches."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return 1


@pytest.mark.parametrize("kind", ["workers of a stream", "batch sampler", "prepared", "own class"])
def test_evaluation_reads_all_batches_beyond_the_length(reference, ours, tmp_path, kind):
    """Two workers make 2 batches of 4 rows of a stream of 8 rows, whose loader has the length 1
    with batches of 8.
    """
    items: Any = points(8, seed=61)

    def subclass(base):
        class Own(base):
            def get_eval_dataloader(self, dataset=None):
                if kind == "workers of a stream":
                    return super().get_eval_dataloader(dataset)
                batches = RoughBatches(range(8), 4, drop_last=False)
                loader = torch.utils.data.DataLoader(
                    items, batch_sampler=batches, collate_fn=self.data_collator
                )
                if kind == "prepared":
                    return self.accelerator.prepare(loader)
                return OwnLoader(list(loader)) if kind == "own class" else loader

        return Own

    labels = []

    def metrics(prediction):
        labels.append(prediction.label_ids.tolist())
        return {"rows": len(prediction.label_ids)}

    arguments = {
        "eval_strategy": "epoch",
        "per_device_eval_batch_size": 8,
        "dataloader_num_workers": 2 if kind == "workers of a stream" else 0,
    }

    def data():
        return {"train_dataset": points(4), "eval_dataset": SplitStream(items)}

    case = Case(
        Classifier,
        data,
        arguments,
        lambda api: {"compute_metrics": metrics},
        subclass=subclass,
    )
    assert_parity(reference, ours, case, tmp_path)
    assert {len(rows) for rows in labels} == {8}
