"""Metrics keep their own precision, whatever that of the model is."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError, Metric
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import make_trainer
from lightrainer import CausalLMModule, LossModule, SequenceClassificationModule

TRUE_PRECISIONS = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}


class TensorsOfItsOwn(Metric):
    """Adds up a tensor that `update` makes, in torch's default type."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, preds, target):
        batch = torch.tensor(0.0)
        batch += preds.numel() + 1 / 3
        self.total = self.total + batch

    def compute(self):
        return self.total


def validated(module, dataset, precision):
    trainer = make_trainer(precision=precision)
    return trainer.validate(module, DataLoader(dataset, batch_size=4), verbose=False)[0]


@pytest.mark.parametrize("precision", TRUE_PRECISIONS)
def test_usual_metrics_are_exact_under_true_precision(precision):
    """1,000 batches: sums in half precision would no longer grow at the end."""
    dtype = TRUE_PRECISIONS[precision]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(9, (1000, 12), generator=generator)
    numbers = torch.randn(1000, 4, generator=generator)
    targets = numbers.sum(1, keepdim=True)
    torch.manual_seed(0)
    letters = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    regression = nn.Linear(4, 1)
    perplexity = validated(CausalLMModule(letters), tokens, precision)["val_perplexity"]
    mse_module = SequenceClassificationModule(regression, num_labels=1)
    mse = validated(mse_module, TensorDataset(numbers, targets), precision)["val_mse"]

    with torch.no_grad():
        logits = letters.to(dtype)(tokens).double()[:, :-1]
        predicted = regression.to(dtype)(numbers.to(dtype)).double()
    expected = math.exp(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    assert perplexity == pytest.approx(expected, rel=1e-4)
    assert mse == pytest.approx(
        functional.mse_loss(predicted, targets.to(dtype).double()).item(), rel=1e-4
    )


@pytest.mark.parametrize("precision", TRUE_PRECISIONS)
def test_given_metrics_keep_the_type_of_their_states(precision):
    """Also tensors that a metric makes in `update`, and those of a type that the user chose."""
    rows = TensorDataset(torch.randn(800, 4), torch.arange(800) % 3)
    metrics = {"own": TensorsOfItsOwn(), "accuracy": MulticlassAccuracy(3, average="micro")}
    module = LossModule(nn.Linear(4, 3), loss_fn=nn.CrossEntropyLoss(), metrics=metrics)
    assert validated(module, rows, precision)["val_own"] == pytest.approx(
        200 * (12 + 1 / 3), rel=1e-5
    )

    chosen = LossModule(
        nn.Linear(4, 1), metrics={"mse": MeanSquaredError().set_dtype(torch.float64)}
    )
    chosen.to(torch.bfloat16)
    assert chosen.metrics.metrics[0].sum_squared_error.dtype == torch.float64
    assert chosen.to("meta").metrics.metrics[0].sum_squared_error.device.type == "meta"
    assert chosen.model.weight.dtype == torch.bfloat16
