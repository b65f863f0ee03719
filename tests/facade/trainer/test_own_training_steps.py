"""4 micro-batches of 2 rows make the step of one batch of 8, also where an override runs the
backward pass.
"""

import functools
import types

import pytest
import torch
from torch.nn import functional

from helpers.trainer.tiny_trainings import Tiny, arguments, points
from lightrainer import Trainer

STEP = {
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_grad_norm": 0,
    "max_steps": 2,
    "logging_steps": 1,
}


class Base(Trainer):
    """Computes the loss of a micro-batch."""

    def prepared_loss(self, model, inputs):
        model.train()
        return self.compute_loss(model, self._prepare_inputs(inputs))


class ThroughTheAccelerator(Base):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.prepared_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


class AsIn45(Base):
    """accelerate divides in `backward`, so what is logged is divided here."""

    def training_step(self, model, inputs):
        loss = self.prepared_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach() / self.args.gradient_accumulation_steps


class DividesItself(Base):
    """As versions of `training_step` in which accelerate does not divide."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.prepared_loss(model, inputs)
        if self.args.gradient_accumulation_steps > 1:
            loss = loss / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class DividesThenWeighs(Base):
    """Two backward passes, as for adversarial examples, whose losses are weighed in the end."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        whole = 0.0
        for weight in (0.75, 0.25):
            loss = self.prepared_loss(model, inputs) / self.current_gradient_accumulation_steps
            self.accelerator.backward(weight * loss)
            whole += weight * loss.detach()
        return whole


class CachesGradients(Base):
    """A backward pass for each row."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows = len(inputs["x"])
        whole = 0.0
        for row in range(rows):
            piece = {name: values[row : row + 1] for name, values in inputs.items()}
            loss = self.prepared_loss(model, piece) / self.args.gradient_accumulation_steps / rows
            self.accelerator.backward(loss)
            whole += loss.detach()
        return whole


class AddsDivided(Base):
    """Each part of the loss is divided."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        parts = self.args.gradient_accumulation_steps
        loss = self.prepared_loss(model, inputs) / parts
        disturbed = {**inputs, "x": inputs["x"] + 0.1}
        loss = loss + (0.1 / parts) * self.prepared_loss(model, disturbed)
        loss.backward()
        return loss.detach()


PARTS = 4


def share(loss):
    return loss / PARTS


class DividesInAFunction(Base):
    """The number is a variable of the script, and the function is not a method."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = share(self.prepared_loss(model, inputs))
        self.accelerator.backward(loss)
        return loss.detach()


class DividesByAnAttribute(Base):
    def __init__(self, model, args, **kwargs):
        super().__init__(model, args, **kwargs)
        self.parts = 8 // args.train_batch_size

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.prepared_loss(model, inputs) / self.parts
        self.accelerator.backward(loss)
        return loss.detach()


class Plain(Base):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.prepared_loss(model, inputs)
        loss.backward()
        return loss.detach()


class PlainAndDivided(Base):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.prepared_loss(model, inputs) / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()


class Adversarial(Base):
    """A second loss after the Trainer's own step."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.accelerator.backward(self.prepared_loss(model, {**inputs, "x": inputs["x"] + 0.1}))
        return loss


class MeanOfTwo(Base):
    """Ends in a division that has nothing to do with accumulation."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        disturbed = {**inputs, "x": inputs["x"] + 0.1}
        loss = (self.prepared_loss(model, inputs) + self.prepared_loss(model, disturbed)) / 2
        self.accelerator.backward(loss)
        return loss.detach()


def logs(folder, trainer_class, rows, accumulation, *, on_object=None, step=None):
    torch.manual_seed(0)
    model = Tiny(dropout=0.0)
    args = arguments(
        folder, per_device_train_batch_size=rows, gradient_accumulation_steps=accumulation, **STEP
    )
    trainer = trainer_class(model, args, train_dataset=points(16))
    if on_object is not None:
        trainer.training_step = on_object(step, trainer)
    trainer.train()
    return [(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "loss" in log]


KINDS = [
    ThroughTheAccelerator,
    AsIn45,
    DividesItself,
    DividesThenWeighs,
    CachesGradients,
    AddsDivided,
    DividesByAnAttribute,
    Plain,
    PlainAndDivided,
    Adversarial,
    MeanOfTwo,
]


@pytest.mark.parametrize("accumulation", [4, 2])
@pytest.mark.parametrize("trainer_class", KINDS)
def test_own_training_step_under_accumulation(tmp_path, trainer_class, accumulation):
    whole = logs(tmp_path / "whole", trainer_class, 8, 1)
    parts = logs(tmp_path / "parts", trainer_class, 8 // accumulation, accumulation)
    assert len(parts) == 2
    for (loss, norm), (expected_loss, expected_norm) in zip(parts, whole, strict=True):
        assert norm == pytest.approx(expected_norm, rel=1e-5)
        assert loss == pytest.approx(expected_loss, rel=1e-5)


def decorated(function):
    """As decorators that measure time: the wrapper itself neither divides nor runs the pass."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def decorated_without_wraps(function):
    return lambda *args, **kwargs: function(*args, **kwargs)


class Timed:
    """A decorator whose result is an object, bound as methods are."""

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, owner, owner_class=None):
        return types.MethodType(self, owner)


def as_object(step, made):
    """Return an object whose `__call__` is the step; the rest it asks the Trainer for."""
    members = {"__call__": step, "__getattr__": lambda self, name: getattr(made, name)}
    return type("Step", (), members)()


DECORATORS = {
    "decorated": decorated,
    "decorated without wraps": decorated_without_wraps,
    "decorated with an object": Timed,
    "a partial method": functools.partialmethod,
}


@pytest.mark.parametrize(
    "way", ["on the class", "on the object", "an object", "partial", *DECORATORS]
)
@pytest.mark.parametrize("kind", [DividesItself, Plain, PlainAndDivided])
def test_own_training_step_that_is_no_plain_override(tmp_path, monkeypatch, kind, way):
    """Patches and decorated overrides count as plain overrides do, which is the control here."""
    step = vars(kind)["training_step"]
    on_object = None
    trainer_class = Base
    if way == "on the class":
        monkeypatch.setattr(Trainer, "training_step", step)
    elif way == "on the object":
        on_object = types.MethodType
    elif way == "an object":
        on_object = as_object
    elif way == "partial":
        on_object = functools.partial
    else:
        trainer_class = type("Decorated", (Base,), {"training_step": DECORATORS[way](step)})

    parts = logs(tmp_path / "parts", trainer_class, 2, 4, on_object=on_object, step=step)
    monkeypatch.undo()
    expected = logs(tmp_path / "expected", kind, 2, 4)
    assert parts == expected
    whole = logs(tmp_path / "whole", kind, 8, 1)
    assert parts == [pytest.approx(log, rel=1e-5) for log in whole]


def test_own_training_step_that_divides_in_a_function(tmp_path):
    whole = logs(tmp_path / "whole", ThroughTheAccelerator, 8, 1)
    parts = logs(tmp_path / "parts", DividesInAFunction, 8 // PARTS, PARTS)
    assert parts == [pytest.approx(log, rel=1e-5) for log in whole]


def test_override_that_declares_its_loss_is_left_alone(tmp_path):
    """Negative control: the sum of the micro-batches' means is as many times too large."""

    class Declared(ThroughTheAccelerator):
        loss_is_scaled_for_ga = True

    whole = logs(tmp_path / "whole", Declared, 8, 1)
    parts = logs(tmp_path / "parts", Declared, 2, 4)
    assert parts[0][1] == pytest.approx(4 * whole[0][1], rel=1e-5)


class Told(torch.nn.Module):
    """Names `num_items_in_batch`, and divides by it when it is told."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.told = []

    def forward(self, x, labels=None, num_items_in_batch=None):
        self.told.append(num_items_in_batch)
        logits = self.layer(x)
        items = len(labels) if num_items_in_batch is None else num_items_in_batch
        return {
            "loss": functional.cross_entropy(logits, labels, reduction="sum") / items,
            "logits": logits,
        }


def test_forward_that_names_the_items_receives_them(tmp_path):
    args = arguments(
        tmp_path,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        **{**STEP, "max_steps": 1},
    )
    model = Told()
    Trainer(
        model,
        args,
        train_dataset=[{"x": torch.randn(4), "labels": index % 3} for index in range(8)],
    ).train()
    assert [int(items) for items in model.told] == [8, 8, 8, 8]


def test_own_division_in_a_shorter_last_step_stays(tmp_path):
    """As in transformers: two micro-batches of a step of four count as two of four."""

    def norms(rows, trainer_class):
        torch.manual_seed(0)
        args = arguments(
            tmp_path,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_train_epochs=1,
            **{**STEP, "max_steps": -1, "learning_rate": 0.0},
        )
        trainer = trainer_class(Tiny(dropout=0.0), args, train_dataset=points(16)[:rows])
        trainer.train()
        return [log["grad_norm"] for log in trainer.state.log_history if "loss" in log]

    (norm,) = norms(4, DividesItself)
    (whole,) = norms(4, ThroughTheAccelerator)
    assert norm == pytest.approx(whole / 2, rel=1e-5)
