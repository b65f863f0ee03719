"""A training under the watch for overflows: the results of the reference, and the place of a
fault.
"""

import pytest
import torch
from torch import nn

from helpers.parity.harness import Case, assert_parity, build
from helpers.parity.parity_datasets import point_data
from helpers.parity.parity_models import Classifier


def test_underflow_overflow_of_a_watched_training(reference, ours, tmp_path):
    """The same results as in the reference, and as without a watch; nothing is left on the
    model.
    """
    case = Case(
        Classifier,
        point_data,
        {"debug": "underflow_overflow", "eval_strategy": "epoch", "bf16": True},
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert not any(module._forward_hooks for module in actual.trainer.model.modules())


class Growing(nn.Module):
    """Finite in float32, too large for float16."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.first.weight.fill_(300.0)
            self.second.weight.fill_(300.0)

    def forward(self, x, labels=None):
        logits = self.second(self.first(x.abs() + 1.0))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(
    ("precision", "layer"), [("fp16", "second, Linear"), ("bf16", None), ("do_eval", None)]
)
def test_underflow_overflow_of_a_training_that_overflows(ours, tmp_path, caplog, precision, layer):
    """In float16 alone; the hooks are gone afterwards."""
    options = {
        "debug": "underflow_overflow",
        precision: True,
        "learning_rate": 1e-6,
        "max_steps": 2,
    }
    trainer = build(ours, Case(Growing, point_data, options), tmp_path)
    if layer is None:
        trainer.train()
    else:
        with pytest.raises(ValueError, match=f"inf or NaN in output of {layer}"):
            trainer.train()
        assert "first, Linear" in caplog.text
    assert not any(module._forward_hooks for module in trainer.model.modules())
    assert ("Inf or NaN" in caplog.text) == (layer is not None)
