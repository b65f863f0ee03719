"""An error in any function that users write ends the call with that error: no loop takes it for
the end of its data.
"""

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

from helpers.trainer.tiny_trainings import make_trainer, points, split, tiny
from lightrainer import Trainer, TrainerCallback, default_data_collator
from lightrainer.lightning_modules.data.iteration import iterate
from lightrainer.lightning_modules.data.loaders import build_loader

TAKEN_FOR_ANSWERS = [IndexError, AttributeError, NotImplementedError]
"""Errors by which objects say that they have no more, or lack something."""


class Failing:
    """Raises an error at its second call, or at the one that is given."""

    def __init__(self, error: type[Exception], call: int = 2) -> None:
        self.error = error
        self.call = call
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.call:
            raise self.error("by the user")


class Rows:
    """A map-style dataset; fails in the worker that reads row 5."""

    def __init__(self, failing: Any = lambda: None, at: int | None = None) -> None:
        self.rows, self.failing, self.at = points(), failing, at

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if self.at is None or index == self.at:
            self.failing()
        return self.rows[index]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(points())


class Collator:
    """Fails for the batch with row 5, in whichever process that is."""

    def __init__(self, failing: Any) -> None:
        self.failing, self.row = failing, points()[5]["x"]

    def __call__(self, features: list[Any]) -> Any:
        if any(torch.equal(feature["x"], self.row) for feature in features):
            self.failing()
        return default_data_collator(features)


def overriding(method: str, failing: Failing) -> type[Trainer]:
    """A Trainer of which one method fails."""

    def override(self: Any, *args: Any, **kwargs: Any) -> Any:
        failing()
        return getattr(Trainer, method)(self, *args, **kwargs)

    return type("Overriding", (Trainer,), {method: override})


def with_own_loader(
    method: str, dataset: Any, collator: Any = default_data_collator
) -> type[Trainer]:
    """A Trainer with a loader of torch that nothing has prepared."""

    def own_loader(self: Any, *args: Any) -> DataLoader:
        return DataLoader(dataset, batch_size=4, collate_fn=collator)

    return type("WithOwnLoader", (Trainer,), {method: own_loader})


def callback(event: str, failing: Failing) -> Any:
    return type("Own", (TrainerCallback,), {event: lambda self, *args, **kwargs: failing()})()


def lightning_callback(hook: str, failing: Failing) -> Any:
    return type("OfLightning", (Callback,), {hook: lambda self, *args, **kwargs: failing()})()


class FailingModel(torch.nn.Module):
    def __init__(self, failing: Failing) -> None:
        super().__init__()
        self.inner, self.failing = tiny(), failing

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.failing()
        return self.inner(x, labels)


class FailingSGD(torch.optim.SGD):
    def __init__(self, model: torch.nn.Module, failing: Failing) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.failing = failing

    def step(self, closure: Any = None) -> Any:
        self.failing()
        return super().step(closure)


def failing_optimizer(failing: Failing) -> dict[str, Any]:
    model = tiny()
    optimizer = FailingSGD(model, failing)
    return {"model": model, "optimizers": (optimizer, LambdaLR(optimizer, lambda step: 1.0))}


def failing_schedule(failing: Failing) -> dict[str, Any]:
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizers": (optimizer, LambdaLR(optimizer, lambda step: failing() or 1.0)),
    }


METHODS = split("""
    training_step compute_loss _prepare_inputs log evaluate evaluation_loop prediction_step create_optimizer
    get_batch_samples floating_point_ops _clip_grad_norm save_model _save _maybe_log_save_evaluate _save_checkpoint
    get_eval_dataloader
    """)

EVENTS = split("""
    on_train_begin on_epoch_begin on_step_begin on_substep_end on_pre_optimizer_step on_optimizer_step on_step_end
    on_log on_evaluate on_prediction_step on_save on_epoch_end on_train_end
    """)

HOOKS = split("""
    on_train_start on_train_batch_start on_train_batch_end on_validation_batch_end on_validation_epoch_end
    on_train_epoch_end
    """)


def loss_function(failing: Failing) -> Any:
    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        failing()
        return torch.nn.functional.cross_entropy(outputs["logits"], labels)

    return loss


PLACES: dict[str, Any] = {
    "forward": lambda fail: {"model": FailingModel(fail)},
    "compute_loss_func": lambda fail: {"compute_loss_func": loss_function(fail)},
    "compute_metrics": lambda fail: {"compute_metrics": lambda prediction: fail() or {}},
    "preprocess_logits_for_metrics": lambda fail: {
        "preprocess_logits_for_metrics": lambda logits, labels: fail() or logits,
        "compute_metrics": lambda prediction: {"n": float(np.size(prediction.label_ids))},
    },
    "data_collator": lambda fail: {
        "data_collator": lambda rows: fail() or default_data_collator(rows)
    },
    "train_dataset": lambda fail: {"train_dataset": Rows(fail)},
    "eval_dataset": lambda fail: {"eval_dataset": Rows(fail)},
    "model_init": lambda fail: {"model_init": lambda: fail() or tiny()},
    "optimizer": failing_optimizer,
    "schedule": failing_schedule,
    "collator of a stream": lambda fail: {
        "train_dataset": Stream(),
        "data_collator": Collator(fail),
        "max_steps": 6,
    },
}
for method in ("get_train_dataloader", "get_eval_dataloader"):
    PLACES[f"dataset of an own {method}"] = lambda fail, method=method: {
        "cls": with_own_loader(method, Rows(fail))
    }
    PLACES[f"collator of an own {method}"] = lambda fail, method=method: {
        "cls": with_own_loader(method, points(), lambda rows: fail() or default_data_collator(rows))
    }
for method in METHODS:
    PLACES[f"Trainer.{method}"] = lambda fail, method=method: {"cls": overriding(method, fail)}
for event in EVENTS:
    PLACES[f"TrainerCallback.{event}"] = lambda fail, event=event: {
        "callbacks": [callback(event, fail)]
    }
for hook in HOOKS:
    PLACES[f"lightning.Callback.{hook}"] = lambda fail, hook=hook: {
        "callbacks": [lightning_callback(hook, fail)]
    }

CALLED_ONCE = split("""
    TrainerCallback.on_train_begin TrainerCallback.on_train_end Trainer.create_optimizer
    lightning.Callback.on_train_start
    """)


def raised_by(place: str, error: type[Exception], folder: Any, *further: Any) -> Any:
    """Train with two epochs of two steps, which log, save and evaluate, until the place fails;
    return the error.
    """
    failing = Failing(error, 1 if place in CALLED_ONCE else 2)
    parameters = PLACES[place](failing)
    parameters["callbacks"] = [*parameters.get("callbacks", []), *further]
    settings = {
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    running = make_trainer(folder, **{**settings, "eval_strategy": "epoch", **parameters})
    with pytest.raises((error, RuntimeError)) as caught:
        running.train()
    return caught.value


@pytest.mark.parametrize("loop", ["quick", "of Lightning"])
@pytest.mark.parametrize("place", PLACES)
def test_training_stop_iteration_is_an_error(tmp_path, place, loop):
    error = raised_by(
        place, StopIteration, tmp_path, *([Callback()] if loop == "of Lightning" else [])
    )
    cause = cause_of(error)
    assert isinstance(cause, StopIteration)
    assert cause.args == ("by the user",)
    assert error is cause or f"__call__ ({__file__}, " in str(error)


@pytest.mark.parametrize("error", TAKEN_FOR_ANSWERS)
def test_training_error_is_that_of_the_user(tmp_path, error):
    for number, place in enumerate(PLACES):
        raised = raised_by(place, error, tmp_path / str(number))
        assert type(raised) is error, (place, raised)
        assert "by the user" in str(raised), (place, raised)


def cause_of(error: BaseException) -> BaseException:
    """The first error of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@pytest.mark.parametrize(
    "place", split("forward compute_metrics preprocess_logits_for_metrics Trainer.prediction_step")
)
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_evaluation_stop_iteration_is_an_error(tmp_path, place, method):
    failing = Failing(StopIteration, 1 if place == "compute_metrics" else 2)
    running = make_trainer(tmp_path, **PLACES[place](failing))
    with pytest.raises((StopIteration, RuntimeError)) as caught:
        running.evaluate() if method == "evaluate" else running.predict(points())
    assert isinstance(cause_of(caught.value), StopIteration)


LOADERS = {
    "built": build_loader,
    "of the user": lambda *args, **options: iterate(DataLoader(*args, **options)),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("part", ["dataset", "collator", "collator of a stream"])
def test_worker_stop_iteration_is_an_error(part, kind):
    failing = Failing(StopIteration, 1)
    dataset = {
        "dataset": Rows(failing, at=5),
        "collator": Rows(),
        "collator of a stream": Stream(),
    }[part]
    collator = default_data_collator if part == "dataset" else Collator(failing)
    loader = LOADERS[kind](dataset, batch_size=2, collate_fn=collator, num_workers=1)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader)


def pinning():
    """torch warns if there is no device to pin memory for."""
    if torch.accelerator.is_available():
        return contextlib.nullcontext()
    return pytest.warns(UserWarning, match="pin_memory")


def test_pinned_batches_stop_iteration_is_an_error():
    loader = build_loader(Rows(Failing(StopIteration)), batch_size=2, pin_memory=True)
    with pinning(), pytest.raises(RuntimeError) as caught:
        list(loader)
    assert isinstance(cause_of(caught.value), StopIteration)


def test_pinned_batches_are_those_of_torch():
    torch.manual_seed(0)
    with pinning():
        actual = [batch["x"] for batch in build_loader(points(), batch_size=4, pin_memory=True)]
    drawn = torch.rand(())
    torch.manual_seed(0)
    expected = [batch["x"] for batch in DataLoader(points(), batch_size=4)]
    assert torch.equal(torch.cat(actual), torch.cat(expected))
    assert torch.equal(drawn, torch.rand(()))  # the generator has been moved equally far


def test_length_of_a_dataset_error_is_shown(tmp_path):
    class Broken(Rows):
        def __len__(self) -> int:
            return len(self.row)

    with pytest.raises(
        ValueError, match=r"no length \(its __len__ raised AttributeError: 'Broken' .* 'row'\)"
    ):
        make_trainer(tmp_path, train_dataset=Broken()).train()


def test_labels_error_in_a_batch_is_not_taken_for_labels_that_cannot_be_counted(tmp_path):
    class Batch(dict):
        def __getitem__(self, name: str) -> Any:
            raise AttributeError("by the user")

    settings = {
        "compute_loss_func": loss_function(Failing(StopIteration, 0)),
        "data_collator": lambda rows: Batch(labels=1),
    }
    with pytest.raises(AttributeError, match="by the user"):
        make_trainer(tmp_path, **settings).train()
