"""A `StopIteration` of user code under a plain `lightning.Trainer` is an error, not the end of
the data.
"""

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from lightrainer import LightningBridge, TrainerCallback
from lightrainer.lightning_modules import DataModule, LossModule

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Network(nn.Module):
    """Raises in its third forward pass."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.values = iter(range(fails_at - 1)) if fails_at else None

    def forward(self, x, labels=None):
        if self.values is not None:
            next(self.values)
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows():
    return [
        {"x": torch.full((3,), float(index)), "labels": torch.tensor(index % 2)}
        for index in range(8)
    ]


def data(collate=None):
    return DataModule(
        rows(),
        val_dataset=rows(),
        test_dataset=rows(),
        predict_dataset=rows(),
        batch_size=2,
        collate_fn=collate,
    )


def make_trainer(*callbacks):
    return pl.Trainer(**QUIET, max_epochs=2, num_sanity_val_steps=0, callbacks=list(callbacks))


@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
def test_loss_module_stop_iteration_of_the_model_is_an_error(call):
    with pytest.raises(RuntimeError, match=r"forward .*raised StopIteration"):
        getattr(make_trainer(), call)(LossModule(Network(fails_at=3)), datamodule=data())


def test_loss_module_stop_iteration_of_a_metric_is_an_error():
    values = iter([0.5])
    module = LossModule(Network(), metrics={"accuracy": lambda predictions, labels: next(values)})
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        make_trainer().fit(module, datamodule=data())


def test_data_module_stop_iteration_of_the_collator_is_an_error():
    sizes = iter([1, 2, 3])

    def collate(samples):
        next(sizes)
        return torch.utils.data.default_collate(samples)

    with pytest.raises(RuntimeError) as caught:
        make_trainer().fit(LossModule(Network()), datamodule=data(collate))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_bridge_stop_iteration_of_a_callback_is_an_error():
    class Own(TrainerCallback):
        values = iter([1, 2])

        def on_step_end(self, args, state, control, **kwargs):
            next(self.values)

    with pytest.raises(RuntimeError, match=r"on_step_end .*raised StopIteration"):
        make_trainer(LightningBridge(Own())).fit(LossModule(Network()), datamodule=data())
