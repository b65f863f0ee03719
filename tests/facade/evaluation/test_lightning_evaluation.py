"""Lightning callbacks in evaluations and predictions: the hooks, the outputs of each batch, the
metrics.
"""

import pytest
import torch
from lightning.pytorch import Callback
from torchmetrics.classification import MulticlassAccuracy

from helpers.trainer.tiny_trainings import make_trainer, points
from lightrainer.facade.evaluation.module import EvaluationModule


class Watching(Callback):
    """Notes what the hooks are given."""

    def __init__(self):
        self.outputs, self.metrics = [], []

    def on_validation_batch_end(
        self, lightning_trainer, module, outputs, batch, batch_idx, dataloader_idx=0
    ):
        self.outputs.append((outputs, batch))

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, lightning_trainer, module):
        self.metrics.append(
            {name: float(value) for name, value in lightning_trainer.callback_metrics.items()}
        )

    on_test_end = on_validation_end


@pytest.mark.parametrize(
    "metrics", [lambda p: {"accuracy": 0.5}, None], ids=["metrics", "no metrics"]
)
def test_evaluation_outputs_of_a_batch(tmp_path, metrics):
    """Of this process: the loss, and where they are computed predictions and labels."""
    watching = Watching()
    trainer = make_trainer(tmp_path, callbacks=[watching], compute_metrics=metrics)
    trainer.evaluate(points(6, seed=2))
    for outputs, batch in watching.outputs:
        with torch.no_grad():
            expected = trainer.model(**batch)
        assert torch.equal(outputs["loss"], expected["loss"])
        if metrics is None:
            assert (outputs["predictions"], outputs["label_ids"]) == (None, None)
        else:
            assert torch.equal(outputs["predictions"], expected["logits"])
            assert torch.equal(outputs["label_ids"], batch["labels"])


@pytest.mark.parametrize(
    "metrics", [lambda p: {"accuracy": 0.5, "words": "x"}, {"accuracy": MulticlassAccuracy(3)}]
)
def test_lightning_evaluation_gives_the_metrics(tmp_path, metrics):
    """Those that are numbers, at the end of the loop, and computed once; the same with and
    without a training.
    """
    calls = []

    def counted(prediction):
        calls.append(torch.is_grad_enabled())
        return metrics(prediction)

    watching = Watching()
    compute_metrics = counted if callable(metrics) else metrics
    trainer = make_trainer(
        tmp_path, callbacks=[watching], compute_metrics=compute_metrics, eval_strategy="epoch"
    )
    logged = [trainer.evaluate()]
    trainer.train()
    logged += [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    test = trainer.predict(points(5)).metrics
    assert len(watching.metrics) == 3
    for actual, entry in zip(watching.metrics, [*logged, test], strict=True):
        prefix = "test" if entry is test else "eval"
        for name in (f"{prefix}_loss", f"{prefix}_accuracy"):
            assert actual[name] == pytest.approx(entry[name])
    assert calls in ([True] * 3, [])


def test_evaluation_model_stays_on_its_device():
    """Only the module refuses, the model inside moves."""
    module = EvaluationModule(torch.nn.Linear(1, 1, device="meta"))
    assert module.cpu() is module
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert module.device.type == "meta"
    with pytest.raises(NotImplementedError, match="meta"):
        module.model.cpu()


def test_evaluation_keeps_gradients(tmp_path):
    """Those that a loop of the script has before its step."""
    trainer = make_trainer(tmp_path)
    trainer.evaluate(points(6, seed=2))  # an evaluation computes none
    assert all(weight.grad is None for weight in trainer.model.parameters())

    for weight in trainer.model.parameters():
        weight.grad = torch.ones_like(weight)
    trainer.evaluate(points(6, seed=2))
    trainer.predict(points(6, seed=2))
    assert all(weight.grad.eq(1).all() for weight in trainer.model.parameters())
