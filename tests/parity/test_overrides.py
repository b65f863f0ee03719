"""Overrides and functions of users are called at the same points with the same arguments."""

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, SequentialSampler

from helpers.parity.harness import Case, assert_parity, assert_same, run
from helpers.parity.parity_datasets import point_data, points, sentence_data, sentences
from helpers.parity.parity_models import Classifier, TokenModel, gpt2

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 2}


def token_loss(outputs, labels, num_items_in_batch=None):
    """A sum over the labels, divided by the labels of the whole window."""
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    total = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / (
        num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum()
    )


@pytest.mark.parametrize("model", [TokenModel, gpt2], ids=["plain module", "gpt2"])
def test_compute_loss_func(reference, ours, tmp_path, model):
    extras = lambda api: {"compute_loss_func": token_loss}
    case = Case(model, sentence_data, EVALUATED, extras=extras, test=lambda: sentences(7, seed=22))
    assert_parity(reference, ours, case, tmp_path)


def scaled_by_itself(passed):
    """As trainers of generated answers do it: any value switches off the division by the
    micro-batches of a step.
    """

    def subclass(base):
        class ScaledByItself(base):
            def __init__(self, *positional, **keywords):
                super().__init__(*positional, compute_loss_func=passed, **keywords)
                self.model_accepts_loss_kwargs = False

            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                outputs = model(**inputs)
                loss = outputs["loss"]
                loss = loss / self.current_gradient_accumulation_steps if model.training else loss
                return (loss, outputs) if return_outputs else loss

        return ScaledByItself

    return subclass


@pytest.mark.parametrize("model", [TokenModel, gpt2], ids=["plain module", "gpt2"])
def test_compute_loss_func_that_is_not_callable_disables_the_division(
    reference, ours, tmp_path, model
):
    """The override is never called. The control: without it the loss is divided twice."""
    case = Case(
        model, sentence_data, EVALUATED, subclass=scaled_by_itself("any value that is not None")
    )
    assert_parity(reference, ours, case, tmp_path)
    divided = run(ours, case.but(subclass=scaled_by_itself(None)), tmp_path / "control")
    scaled = run(ours, case, tmp_path / "once")
    assert scaled.history[0]["loss"] == pytest.approx(2 * divided.history[0]["loss"], rel=0.01)


def weighted_loss(model, inputs, return_outputs=False, **more):
    outputs = model(x=inputs["x"])
    weight = torch.tensor([1.0, 2.0, 0.5], device=outputs["logits"].device)
    loss = functional.cross_entropy(outputs["logits"], inputs["labels"], weight=weight)
    return (loss, {"loss": None, **outputs}) if return_outputs else loss


def with_new_signature(base):
    class Weighted(base):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return weighted_loss(model, inputs, return_outputs)

    return Weighted


SIGNATURES = {
    "old": lambda self, model, inputs, return_outputs=False: weighted_loss(
        model, inputs, return_outputs
    ),
    "any": lambda self, model, inputs, **kwargs: weighted_loss(model, inputs, **kwargs),
    "oldest": lambda self, model, inputs: weighted_loss(model, inputs),
}


@pytest.mark.parametrize("kind", SIGNATURES)
def test_compute_loss_of_an_older_script(reference, ours, tmp_path, kind):
    """Without `num_items_in_batch`, which 5.3.0 refuses: the same bits as the same loss in the new
    signature.

    `compute_loss(self, model, inputs)` is documented for training alone.
    """
    arguments, test = EVALUATED, lambda: points(7, seed=21)
    if kind == "oldest":
        arguments, test = {"gradient_accumulation_steps": 2}, None
    case = Case(Classifier, point_data, arguments, subclass=with_new_signature, test=test)
    expected = run(reference, case, tmp_path / "reference")
    older = case.but(
        subclass=lambda base: type("Weighted", (base,), {"compute_loss": SIGNATURES[kind]})
    )
    assert_same(expected, run(ours, older, tmp_path / "ours"))


def around_the_training_step(base):
    """Call `super().training_step` and scale what is logged."""

    class Doubling(base):
        def training_step(self, model, inputs, num_items_in_batch=None):
            inputs = {**inputs, "x": inputs["x"] * 2}
            return super().training_step(model, inputs, num_items_in_batch) * 3

    return Doubling


def own_training_step(base):
    """Run the backward pass itself, through `self.accelerator` as scripts do."""

    class Own(base):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
                loss = loss + 0.01 * sum(
                    parameter.square().sum() for parameter in model.parameters()
                )
            loss = loss / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    return Own


def evaluating_with_more(base):
    class Evaluating(base):
        def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            return {**metrics, f"{metric_key_prefix}_more": 1.0}

    return Evaluating


def own_loaders(base):
    """Loaders of the user's own, one of them not made ready by the trainer."""

    class OwnLoaders(base):
        def get_train_dataloader(self):
            generator = torch.Generator().manual_seed(9)
            return DataLoader(self.train_dataset, batch_size=5, shuffle=True, generator=generator)

        def get_eval_dataloader(self, eval_dataset=None):
            dataset = self.eval_dataset if eval_dataset is None else eval_dataset
            return DataLoader(dataset, batch_size=3, sampler=SequentialSampler(dataset))

    return OwnLoaders


def own_optimizer_and_schedule(base):
    """`create_optimizer` and `create_scheduler` of a subclass are called, with the number of
    steps.
    """

    class Own(base):
        def create_optimizer(self, *unused):
            if self.optimizer is None:
                self.optimizer = torch.optim.SGD(
                    self.model.parameters(), lr=self.args.learning_rate, momentum=0.9
                )
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            if self.lr_scheduler is None:
                schedule = torch.optim.lr_scheduler.OneCycleLR
                self.lr_scheduler = schedule(
                    optimizer or self.optimizer, 0.1, total_steps=num_training_steps + 1
                )
            return self.lr_scheduler

    return Own


def model_from_a_function(base):
    """`model_init` is called when the trainer is created, and after reseeding when it trains."""

    class FromFunction(base):
        def __init__(self, model, **keywords):
            super().__init__(model_init=lambda: Classifier(), **keywords)

    return FromFunction


def with_other_names(base):
    """Parameters have names of the script; what is logged shows that each gets its value."""

    class OtherNames(base):
        def get_batch_samples(self, batches, number, place):
            return super().get_batch_samples(batches, number, place)

        def training_step(self, network, batch, count=None):
            self.counted = int(count)
            return super().training_step(network, batch, count)

        def log(self, values, began=None):
            values["counted"] = self.counted
            values["in_training"] = began is not None
            super().log(values, began)

    return OtherNames


def with_any_positions(base):
    """Overrides hand on what they get by position."""

    class AnyPositions(base):
        def training_step(self, *positional):
            self.counted = int(positional[2])
            return super().training_step(*positional)

        def log(self, *positional):
            positional[0]["counted"] = self.counted
            positional[0]["positions"] = len(positional)
            super().log(*positional)

    return AnyPositions


def preparing_each_value(base):
    """`_prepare_input` gets the batch, and each value in it."""

    class Preparing(base):
        def _prepare_input(self, data):
            prepared = super()._prepare_input(data)
            if isinstance(prepared, torch.Tensor) and prepared.is_floating_point():
                return prepared.bfloat16().float()
            return prepared

    return Preparing


def around_the_loop(base):
    """`_inner_training_loop` gets the batch size of a process."""

    class Around(base):
        def _inner_training_loop(self, batch_size=None, **keywords):
            result = super()._inner_training_loop(batch_size, **keywords)
            self.log({"batch_size": batch_size})
            return result

    return Around


SUBCLASS = [
    with_new_signature,
    preparing_each_value,
    around_the_loop,
    around_the_training_step,
    own_training_step,
    evaluating_with_more,
    own_loaders,
    own_optimizer_and_schedule,
    model_from_a_function,
]


@pytest.mark.parametrize("subclass", SUBCLASS)
def test_override_is_called_as_in_the_reference(reference, ours, tmp_path, subclass):
    test = None if subclass is own_loaders else lambda: points(7, seed=21)
    assert_parity(
        reference,
        ours,
        Case(Classifier, point_data, EVALUATED, subclass=subclass, test=test),
        tmp_path,
    )


@pytest.mark.parametrize("subclass", [with_other_names, with_any_positions])
def test_override_with_other_parameters(reference, ours, tmp_path, subclass):
    """The reference passes these arguments by position."""
    case = Case(TokenModel, sentence_data, EVALUATED, subclass=subclass)
    assert_parity(reference, ours, case, tmp_path)


def logging_by_itself(base):
    """As libraries do it: all that is logged is made here, of a tensor that is then set back in
    place.
    """

    class Logging(base):
        def training_step(self, *positional, **keywords):
            loss = super().training_step(*positional, **keywords)
            self.before = [*getattr(self, "before", []), self._tr_loss.item()]
            return loss

        def _maybe_log_save_evaluate(
            self,
            tr_loss,
            grad_norm,
            model,
            trial,
            epoch,
            ignore_keys_for_eval,
            start_time,
            learning_rate=None,
        ):
            if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
                assert tr_loss is self._tr_loss
                steps = self.state.global_step - self._globalstep_last_logged
                logs = {
                    "mean": tr_loss.item() / steps,
                    "sums": self.before,
                    "norm": float(grad_norm),
                }
                self._total_loss_scalar += tr_loss.item()
                tr_loss -= tr_loss
                self._globalstep_last_logged = self.state.global_step
                self.log({**logs, "rate": learning_rate}, start_time)
            super()._maybe_log_save_evaluate(
                tr_loss,
                grad_norm,
                model,
                trial,
                epoch,
                ignore_keys_for_eval,
                start_time,
                learning_rate=learning_rate,
            )

    return Logging


def adding_to_the_loss(base):
    """Half of the loss is logged, and one more."""

    class Adding(base):
        def _maybe_log_save_evaluate(self, tr_loss, *positional, **keywords):
            if self.control.should_log:
                tr_loss /= 2
                self._tr_loss += 1
            super()._maybe_log_save_evaluate(tr_loss, *positional, **keywords)
            self.after = [*getattr(self, "after", []), tr_loss.item()]
            if self.control.should_training_stop:
                self.log({"after": self.after, "last": self._globalstep_last_logged})

    return Adding


@pytest.mark.parametrize("subclass", [logging_by_itself, adding_to_the_loss])
def test_override_that_logs(reference, ours, tmp_path, subclass):
    """With the numbers that the loop of the reference keeps, and a total that is the mean of the
    training.
    """
    case = Case(Classifier, point_data, {**EVALUATED, "logging_steps": 2}, subclass=subclass)
    assert_parity(reference, ours, case, tmp_path)


def test_override_collator_with_more_columns(reference, ours, tmp_path):
    """All of a batch reaches the model, also values that are no tensors."""

    class Scaled(Classifier):
        def forward(self, x, labels=None, scale=1.0, names=()):
            assert all(isinstance(name, str) for name in names)
            return super().forward(x * scale, labels)

    def collate(batch):
        stacked = {key: torch.stack([item[key] for item in batch]) for key in ("x", "labels")}
        return {**stacked, "scale": 0.5, "names": ["a"] * len(batch)}

    case = Case(Scaled, lambda: {**point_data(), "data_collator": collate}, EVALUATED)
    assert_parity(reference, ours, case, tmp_path)
