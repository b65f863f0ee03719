"""One optimizer for each parameter, stepped in the backward pass."""

import copy
import gc

import pytest
import torch
from torch import nn
from transformers import get_scheduler as reference_get_scheduler
from transformers.trainer_pt_utils import LayerWiseDummyScheduler

from helpers.optim import optimizer_stand_ins
from helpers.optim.reference_optimizers import reference_class_and_kwargs, same_bits, small_model
from lightrainer.lightning_modules.common.enums import SchedulerType
from lightrainer.lightning_modules.optim import LayerwiseOptimizer, OptimizerConfig
from lightrainer.lightning_modules.optim.schedules import get_scheduler

CONFIG = OptimizerConfig(name="galore_adamw_layerwise", target_modules=["0"], learning_rate=0.1)


def layerwise(model, cls=torch.optim.AdamW, **kwargs):
    inner = {parameter: cls([parameter], lr=0.1, **kwargs) for parameter in model.parameters()}
    return LayerwiseOptimizer(inner, lr=0.1)


def steps(model, numbers):
    for number in numbers:
        torch.manual_seed(number)
        model(torch.randn(4, 5)).square().sum().backward()


def test_layerwise_backward_pass_equals_a_step_of_the_reference(monkeypatch):
    optimizer_stand_ins.install(monkeypatch, "galore_torch")
    model, expected = small_model(), small_model()
    torch.manual_seed(5)
    optimizer = CONFIG.build(model)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    reference_class, kwargs = reference_class_and_kwargs(CONFIG, expected)
    reference = reference_class(kwargs.pop("optimizer_dict"), lr=kwargs["lr"])
    assert torch.equal(after, torch.get_rng_state())
    assert reference.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.1
    steps(model, range(3))
    steps(expected, range(3))
    assert same_bits(model.state_dict(), expected.state_dict())
    assert not same_bits(model.state_dict(), small_model().state_dict())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_parameters_have_no_hook():
    model = small_model()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = layerwise(model)
    steps(model, range(2))
    assert same_bits(model.state_dict()["0.weight"], before["0.weight"])
    assert not same_bits(model.state_dict()["2.weight"], before["2.weight"])
    assert len(optimizer.optimizer_dict) == 6


def test_layerwise_optimizer_frees_its_model():
    """The reference's hooks continue training forever."""
    model = small_model()
    optimizer = layerwise(model)
    steps(model, range(1))
    del optimizer
    gc.collect()
    before = copy.deepcopy(model.state_dict())
    steps(model, range(1))
    assert same_bits(model.state_dict(), before)
    assert model[0].weight.grad is not None


SCHEDULES = [name for name in SchedulerType if name is not SchedulerType.REDUCE_ON_PLATEAU]
OWN = {
    SchedulerType.COSINE_WITH_MIN_LR: {"min_lr": 0.01},
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: {"min_lr": 0.01},
    SchedulerType.WARMUP_STABLE_DECAY: {"num_decay_steps": 2},
}


# the reference's
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_layerwise_parameters_have_schedules(monkeypatch, name):
    """The rates of all parameters are the reference's, and the schedule shows them."""
    # The reference shows the rates of all layers for its one group, which newer versions of torch
    # do not take.
    first = lambda self: [next(iter(self.optimizer.optimizer_dict.values())).param_groups[0]["lr"]]
    monkeypatch.setattr(LayerWiseDummyScheduler, "get_lr", first)
    optimizer_stand_ins.install(monkeypatch, "galore_torch")
    model, expected = small_model(), small_model()
    optimizer = CONFIG.build(model)
    cls, kwargs = reference_class_and_kwargs(CONFIG, expected)
    reference = cls(kwargs["optimizer_dict"], lr=0.1)
    setups = [(model, optimizer, get_scheduler), (expected, reference, reference_get_scheduler)]
    all_rates = []
    for module, trained_optimizer, make in setups:
        scheduler = make(name.value, trained_optimizer, 2, 8, OWN.get(name))
        rates = []
        for number in range(6):
            steps(module, [number])
            trained_optimizer.step()
            rates.append(scheduler.get_last_lr()[0])
            scheduler.step()
            rates += [
                inner.param_groups[0]["lr"] for inner in trained_optimizer.optimizer_dict.values()
            ]
        all_rates.append(rates)
    assert same_bits(*all_rates)
    assert len(set(all_rates[0])) > 1 or name is SchedulerType.CONSTANT
    assert same_bits(model.state_dict(), expected.state_dict())


def test_state_goes_through_a_file(tmp_path):
    """Optimizer and schedule resume where they were; the reference starts from scratch."""
    whole, model = small_model(), small_model()
    first, second = layerwise(whole), layerwise(model)
    schedules = [get_scheduler("linear", optimizer, 0, 8) for optimizer in (first, second)]
    steps(whole, range(6))
    steps(model, range(3))
    torch.save(
        {"optimizer": second.state_dict(), "schedule": schedules[1].state_dict()},
        tmp_path / "state.pt",
    )
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = small_model()
    resumed.load_state_dict(model.state_dict())
    optimizer = layerwise(resumed)
    schedule = get_scheduler("linear", optimizer, 0, 8)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    steps(resumed, range(3, 6))
    assert same_bits(resumed.state_dict(), whole.state_dict())


def test_layerwise_checkpoint_of_the_reference_warns(caplog):
    """Our schedule resumes from where theirs was."""
    optimizer = layerwise(small_model())
    optimizer.load_state_dict({"state": {}, "param_groups": [{"lr": 0.05, "params": [0]}]})
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert "start anew" in caplog.text


def test_layerwise_shared_parameter_is_stepped_once():
    shared = nn.Linear(3, 3, bias=False)
    model = nn.Sequential(shared, shared)
    optimizer = layerwise(model, torch.optim.SGD)
    before, x = shared.weight.detach().clone(), torch.ones(1, 3)
    model(x).sum().backward()
    free = before.clone().requires_grad_()
    (x @ free.T @ free.T).sum().backward()
    assert len(optimizer.optimizer_dict) == 1
    assert torch.allclose(shared.weight, before - 0.1 * free.grad)
