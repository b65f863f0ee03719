"""Each private name of torch in use behaves as expected."""

import dataclasses
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree

from lightrainer.callbacks._compilation import is_compiled
from lightrainer.lightning_modules.internals import torch_names
from lightrainer.lightning_modules.models.model_output import ModelOutput
from lightrainer.lightning_modules.models.wrappers import unwrap_model


def test_torch_names_store_is_that_of_the_process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch_names.default_store().set("key", "value")
        assert torch_names.default_store().get("key") == b"value"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("marked", [True, False])
def test_schedules_expect_no_steps_of_a_marked_optimizer(marked):
    """The control: without the mark torch warns of the order."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    if marked:
        torch_names.mark_as_stepped(optimizer, lambda self, closure=None: None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.step()
    assert len(caught) == (not marked)


def test_torch_names_schedule_created_before_the_mark_does_not_warn():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    torch_names.mark_as_stepped(optimizer, lambda self, closure=None: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()


@dataclasses.dataclass
class Output(ModelOutput):
    loss: torch.Tensor
    logits: torch.Tensor | None = None


def test_torch_names_find_tensors_of_an_output():
    output = Output(loss=torch.ones(1), logits=torch.zeros(2))
    assert [tuple(leaf.shape) for leaf in _pytree.tree_leaves(output)] == [(1,), (2,)]


class Renaming(nn.Linear):
    def _load_from_state_dict(self, *args):
        super()._load_from_state_dict(*args)


def hooked():
    model = nn.Linear(1, 1)
    model.register_load_state_dict_pre_hook(lambda *args: None)
    return model


@pytest.mark.parametrize(
    ("model", "renames"), [(nn.Linear(1, 1), False), (Renaming(1, 1), True), (hooked(), True)]
)
def test_torch_names_detect_renaming_models(model, renames):
    assert torch_names.renames_what_it_loads(nn.Sequential(model)) is renames


def test_compiled_models_are_known():
    """Compiled in place, and as a wrapper with the model in it."""
    model = nn.Linear(1, 1)
    assert not is_compiled(None, model)
    assert unwrap_model(torch.compile(model, backend="eager")) is model
    model.compile(backend="eager")
    assert is_compiled(None, model)
