"""A loss is found in whatever a model returns, or the error says what was returned and what is
expected.
"""

import re
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from lightrainer.lightning_modules.models.outputs import read_loss, split_outputs

LOSS, LOGITS, HIDDEN = torch.tensor(1.5), torch.ones(2, 3), torch.zeros(2, 4)
Named = namedtuple("Named", "loss logits hidden")


@dataclass
class Plain:
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


@dataclass(slots=True)
class Slotted:
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


VALUES = {"loss": LOSS, "logits": LOGITS, "hidden": HIDDEN}
BARE = {"logits": LOGITS, "hidden": HIDDEN}
FORMS = {
    kind.__name__: kind(**VALUES)
    for kind in (dict, OrderedDict, UserDict, SimpleNamespace, Plain, Slotted)
} | {
    "dict, loss last": {**BARE, "loss": LOSS},
    "mapping proxy": MappingProxyType(VALUES),
    "model output": SequenceClassifierOutput(loss=LOSS, logits=LOGITS, hidden_states=HIDDEN),
    "tuple": (LOSS, LOGITS, HIDDEN),
    "named tuple": Named(**VALUES),
    "list": [LOSS, LOGITS, HIDDEN],
}
WITHOUT_LOSS = {kind.__name__: kind(**BARE) for kind in (dict, SimpleNamespace, Plain, Slotted)} | {
    "model output": SequenceClassifierOutput(logits=LOGITS, hidden_states=HIDDEN),
    "tuple": (LOGITS, HIDDEN),
    "list": [LOGITS, HIDDEN],
}


def identical(first, second):
    return len(first) == len(second) and all(
        left is right for left, right in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("outputs", FORMS.values(), ids=FORMS)
def test_loss_is_read(outputs):
    """The very tensor that the model made, so that its graph is kept; the rest are predictions,
    in its order.
    """
    assert read_loss(outputs) is LOSS
    assert identical(split_outputs(outputs, [], has_loss=True), (LOGITS, HIDDEN))


def test_outputs_vector_may_start_with_the_loss():
    """A module of Lightning's may return the logits of one class so; a matrix is never a loss."""
    vector = torch.tensor([2.0, 3.0, 4.0])
    assert read_loss(vector, first_of_vector=True) == 2.0
    assert split_outputs(vector, [], has_loss=True).tolist() == [3.0, 4.0]
    for outputs, first in ((vector, False), (vector[:0], True), (vector[:, None], True)):
        with pytest.raises(ValueError, match="returned no loss, but a Tensor of shape"):
            read_loss(outputs, first_of_vector=first)


@pytest.mark.parametrize("outputs", WITHOUT_LOSS.values(), ids=WITHOUT_LOSS)
def test_predictions_of_a_model_without_labels(outputs):
    assert identical(split_outputs(outputs, [], has_loss=False), (LOGITS, HIDDEN))


@pytest.mark.parametrize(
    "name", [name for name in FORMS if not re.match("tuple|named|list|model", name)]
)
def test_ignored_keys_are_left_out(name):
    assert identical(split_outputs(FORMS[name], ["hidden"], has_loss=True), (LOGITS,))
    assert identical(split_outputs(FORMS[name], ["hidden", "logits"], has_loss=True), ())
    assert identical(split_outputs(FORMS[name], ("no such name",), has_loss=True), (LOGITS, HIDDEN))


def test_loss_is_a_prediction_when_there_were_no_labels():
    """As in the reference: only what was computed with labels has a loss to take out."""
    assert identical(
        split_outputs({"loss": LOSS, "logits": LOGITS}, [], has_loss=False), (LOSS, LOGITS)
    )
