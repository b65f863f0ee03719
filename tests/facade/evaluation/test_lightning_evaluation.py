"""Lightning callbacks in evaluations and predictions: the hooks, the outputs of each batch, the metrics."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from tiny import At, points, told, trainer
from torchmetrics.classification import MulticlassAccuracy

STAGES = ("validation", "test", "predict")


class Watching(Callback):
    """Notes the hooks, and what they are given."""

    def __init__(self):
        self.hooks, self.outputs, self.metrics = [], [], []

    def __getattribute__(self, name):
        if name.startswith("on_") and name.split("_")[1] in STAGES:
            object.__getattribute__(self, "hooks").append(name)
        return object.__getattribute__(self, name)

    def on_validation_batch_end(self, lightning_trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.outputs.append((outputs, batch))

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, lightning_trainer, module):
        self.metrics.append({name: float(value) for name, value in lightning_trainer.callback_metrics.items()})

    on_test_end = on_validation_end


def stages(watching):
    return {name.split("_")[1] for name in watching.hooks}


@pytest.mark.parametrize(("method", "stage"), [("evaluate", "validation"), ("predict", "test")])
def test_the_hooks_outside_of_a_training(tmp_path, method, stage):
    """`evaluate` is Lightning's validation, `predict` its test: there are labels and metrics in it."""
    watching = Watching()
    made = trainer(tmp_path, callbacks=[watching])
    getattr(made, method)(points(6, seed=2))
    assert stages(watching) == {stage}
    assert watching.hooks.count(f"on_{stage}_batch_start") == watching.hooks.count(f"on_{stage}_batch_end") == 2
    for hook in ("start", "epoch_start", "epoch_end", "end"):
        assert watching.hooks.count(f"on_{stage}_{hook}") == 1


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_the_hooks_inside_of_a_training(tmp_path, method):
    """Both are a validation there: Lightning's fit has no other."""
    watching = Watching()
    at = At("on_step_end", lambda of, state, control: getattr(of, method)(points(6, seed=2)), step=2)
    told(trainer(tmp_path, callbacks=[watching, at])).train()
    assert stages(watching) == {"validation"}
    assert watching.hooks.count("on_validation_batch_end") == 2


@pytest.mark.parametrize("metrics", [lambda p: {"accuracy": 0.5}, None], ids=["metrics", "no metrics"])
def test_the_outputs_of_a_batch(tmp_path, metrics):
    """Of this process: the loss, and where they are computed predictions and labels."""
    watching = Watching()
    made = trainer(tmp_path, callbacks=[watching], compute_metrics=metrics)
    made.evaluate(points(6, seed=2))
    for outputs, batch in watching.outputs:
        with torch.no_grad():
            expected = made.model(**batch)
        assert torch.equal(outputs["loss"], expected["loss"])
        if metrics is None:
            assert (outputs["predictions"], outputs["label_ids"]) == (None, None)
        else:
            assert torch.equal(outputs["predictions"], expected["logits"])
            assert torch.equal(outputs["label_ids"], batch["labels"])


@pytest.mark.parametrize("metrics", [lambda p: {"accuracy": 0.5, "words": "x"}, {"accuracy": MulticlassAccuracy(3)}])
def test_the_metrics(tmp_path, metrics):
    """Those that are numbers, at the end of the loop, and computed once; the same with and without a training."""
    calls = []

    def counted(prediction):
        calls.append(torch.is_grad_enabled())
        return metrics(prediction)

    watching = Watching()
    given = counted if callable(metrics) else metrics
    made = trainer(tmp_path, callbacks=[watching], compute_metrics=given, eval_strategy="epoch")
    logged = [made.evaluate()]
    made.train()
    logged += [entry for entry in made.state.log_history if "eval_loss" in entry]
    test = made.predict(points(5)).metrics
    assert len(watching.metrics) == 3
    for seen, entry in zip(watching.metrics, [*logged, test], strict=True):
        prefix = "test" if entry is test else "eval"
        for name in (f"{prefix}_loss", f"{prefix}_accuracy"):
            assert seen[name] == pytest.approx(entry[name])
    assert calls in ([True] * 3, [])


def test_lightnings_early_stopping(tmp_path):
    """A Lightning callback watches a metric of the evaluation, and ends the training."""
    values = iter([3.0, 2.0, 2.5, 2.6, 1.0, 0.5])
    made = trainer(
        tmp_path,
        callbacks=[EarlyStopping(monitor="eval_value", patience=2, mode="min")],
        compute_metrics=lambda prediction: {"value": next(values)},
        eval_strategy="epoch",
        num_train_epochs=6,
    )
    assert made.train().global_step == 4 * 4


def test_early_stopping_that_finds_no_metric(tmp_path):
    """Negative control: Lightning says which ones there are."""
    stopping = EarlyStopping(monitor="eval_other", patience=2)
    made = trainer(tmp_path, callbacks=[stopping], eval_strategy="epoch")
    with pytest.raises(RuntimeError, match=r"(?s)eval_other.*eval_loss"):
        made.train()


@pytest.mark.parametrize("event", ["on_substep_end", "on_pre_optimizer_step"])
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_between_two_micro_batches(tmp_path, event, method):
    """Gradients that are still added up and progress are as they were; the mode is that of an evaluation."""
    seen = []

    def act(of, state, control):
        run = of._run.lightning_trainer
        before = snapshot(of, run)
        assert of.model.dropout.training
        getattr(of, method)(points(6, seed=2))
        assert not of.model.dropout.training
        assert all(same(left, right) for left, right in zip(before, snapshot(of, run), strict=True))
        assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in before[0])
        seen.append(state.global_step)

    def snapshot(of, run):
        gradients = [None if p.grad is None else p.grad.clone() for p in of.model.parameters()]
        progress = run.fit_loop.epoch_loop.batch_progress.state_dict()
        limits = (run.limit_val_batches, run.training, run.validating, run.state.fn, run.state.stage)
        return gradients, [progress, limits, run.fit_loop.epoch_loop.val_loop]

    def same(left, right):
        return all(
            torch.equal(one, other)
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
            else one == other
            for one, other in zip(left, right, strict=True)
        )

    made = told(trainer(tmp_path, callbacks=[At(event, act)], gradient_accumulation_steps=2))
    made.train()
    assert len(seen) == 2
