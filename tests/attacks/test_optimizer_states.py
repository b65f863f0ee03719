"""States of optimizers that do not fit their parameters are refused before any of them is loaded,
through every door.

With `exp_avg = zeros(1)` torch's fused AdamW would write as many numbers as the parameter has where
there is room for one. The checks are tried on every optimizer of torch: states that it has made
itself are always accepted.
"""

import copy
import re
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel

from helpers.checkpoints.harmful_checkpoints import WARNINGS, lightning_trainer
from helpers.trainer.tiny_trainings import make_trainer, points, tiny
from lightrainer.lightning_modules import FolderCheckpointIO, LossModule, build_loader
from lightrainer.lightning_modules.checkpoints import load_torch, save_torch
from lightrainer.lightning_modules.distributed import sharding
from lightrainer.lightning_modules.internals import lightning_internals
from lightrainer.lightning_modules.optim.adafactor import Adafactor
from lightrainer.lightning_modules.optim.layerwise import LayerwiseOptimizer
from lightrainer.lightning_modules.optim.optimizer_fit import (
    require_fitting_loaded_state,
    require_fitting_optimizer_state,
)

pytestmark = WARNINGS


class WithRowScales(torch.optim.AdamW):
    """A subclass with a state of another shape than that of the parameter."""

    def step(self, closure=None):
        """Take a step, and keep the mean of each row."""
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["row_scale"] = parameter.detach().abs().mean(-1)
        return loss


class WithTensorOption(torch.optim.Optimizer):
    """An optimizer of a script whose group has a tensor of several numbers."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "history": torch.zeros(3)})

    def step(self, closure=None):
        """Take a step of plain gradient descent."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data -= group["lr"] * parameter.grad


OPTIMIZERS: dict[str, Any] = {
    name: getattr(torch.optim, name)
    for name in sorted(dir(torch.optim))
    if isinstance(getattr(torch.optim, name), type)
    and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
}
# no optimizer; one for gradients of another kind
del OPTIMIZERS["Optimizer"], OPTIMIZERS["SparseAdam"]
OPTIMIZERS |= {
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, fused=True, amsgrad=True),
    "SGD with momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, fused=True
    ),
    "RMSprop centered": lambda parameters: torch.optim.RMSprop(
        parameters, momentum=0.9, centered=True
    ),
    "Adafactor of the reference": lambda parameters: Adafactor(parameters, beta1=0.9),
    "two groups": lambda parameters: torch.optim.AdamW(
        [{"params": one, "lr": 0.1} for one in parameters]
    ),
    "a subclass": type("Own", (torch.optim.AdamW,), {}),
    "a subclass with a further state": WithRowScales,
    "a tensor as an option": WithTensorOption,
    "a tensor as rate": lambda parameters: torch.optim.AdamW(
        parameters, lr=torch.tensor(0.1), foreach=False
    ),
}


def stepped(name: str) -> tuple[nn.Module, Any]:
    """A model, and an optimizer of that name that has made two steps."""
    model = (
        nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(2)))
        if name == "Muon"
        else tiny()
    )
    optimizer = OPTIMIZERS[name](list(model.parameters()))

    def closure() -> float:
        optimizer.zero_grad()
        loss = sum(parameter.square().sum() for parameter in model.parameters())
        loss.backward()
        return loss.item()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            optimizer.step(closure)
    return model, optimizer


def refused(model, optimizer, state, match):
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=match) as caught:
        require_fitting_optimizer_state(optimizer, state, "folder/optimizer.pt", model=model)
    assert "folder/optimizer.pt" in str(caught.value)
    assert str(optimizer.state_dict()) == str(before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_states_written_by_itself_are_accepted(name):
    model, optimizer = stepped(name)
    state = copy.deepcopy(optimizer.state_dict())
    fresh = OPTIMIZERS[name](list(model.parameters()))
    require_fitting_optimizer_state(fresh, state, "optimizer.pt", model=model)
    require_fitting_optimizer_state(fresh, fresh.state_dict(), "optimizer.pt", model=model)
    require_fitting_loaded_state(optimizer, "optimizer.pt")
    fresh.load_state_dict(state)


def resized(value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors that are smaller in memory than what a step takes this one for."""
    return {
        "one element": torch.zeros(1),
        "no element": torch.zeros(0),
        "another order": value.flatten() if value.dim() > 1 else value[None],
        "too large": torch.zeros(*value.shape[:-1], value.numel() + 1),
        "strides of 0": torch.zeros(1).expand(value.shape),
        "whole numbers": torch.zeros(value.shape, dtype=torch.int64),
        "sparse": torch.zeros(value.shape).to_sparse(),
    }


# Without momentum SGD has no state, and LBFGS one that is of no single parameter. States that a
# script adds may have any shape.
UNCHECKED = ("LBFGS", "SGD", "a subclass with a further state", "a tensor as an option")
NATIVE = [name for name in OPTIMIZERS if name not in UNCHECKED]


@pytest.mark.parametrize("name", NATIVE)
def test_optimizer_state_of_another_shape_is_refused(name):
    """Each tensor of the state of one parameter, in each way."""
    model, optimizer = stepped(name)
    whole = optimizer.state_dict()
    number = next(iter(whole["state"]))
    tensor_keys = [
        key
        for key, value in whole["state"][number].items()
        if isinstance(value, torch.Tensor) and value.dim()
    ]
    assert tensor_keys
    for key in tensor_keys:
        for way, wrong in resized(whole["state"][number][key]).items():
            if way == "whole numbers" and "reference" in name:  # its steps are Python's, and cast
                continue
            state = copy.deepcopy(whole)
            state["state"][number][key] = wrong
            refused(model, optimizer, state, rf"as {key} of ")


@pytest.mark.parametrize("name", ["AdamW fused", "NAdam", "ASGD"])
@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(0), torch.zeros(3), torch.zeros(1).expand(2), torch.zeros(1, dtype=torch.cfloat)],
)
def test_optimizer_step_counter_is_one_number(name, wrong):
    model, optimizer = stepped(name)
    for key in {"step", "mu_product", "eta", "mu"} & optimizer.state_dict()["state"][0].keys():
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][0][key] = wrong
        refused(model, optimizer, state, rf"as {key} of first\.weight, not a number")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda state: state["param_groups"].append(state["param_groups"][0]),
            "2 parameter groups, but the optimizer has 1",
        ),
        (
            lambda state: state["param_groups"][0]["params"].pop(),
            "holds 5 parameters in group 0, but the optimizer has 6",
        ),
        (lambda state: state.update(param_groups=7), "holds no list of parameter groups"),
        (lambda state: state.pop("state"), "does not hold the state of an optimizer, but a dict"),
        (
            lambda state: state["state"].update({77: {}}),
            "the state of a parameter 77 that is not in its groups",
        ),
        (
            lambda state: state["state"].update({"named": {}}),
            "the state of a parameter 'named' that is not in its groups",
        ),
        (
            lambda state: state["state"][0].update(exp_avg=[1]),
            r"a list as exp_avg of first\.weight",
        ),
        (
            lambda state: state["param_groups"][0].update(lr=torch.zeros(0)),
            "as lr of group 0, not a number",
        ),
    ],
)
def test_optimizer_state_that_does_not_fit_is_refused(change, match):
    model, optimizer = stepped("AdamW fused")
    state = copy.deepcopy(optimizer.state_dict())
    change(state)
    refused(model, optimizer, state, match)


def test_optimizer_states_of_layerwise_optimizers():
    model = tiny()
    make = lambda: LayerwiseOptimizer(
        {parameter: torch.optim.AdamW([parameter], fused=True) for parameter in model.parameters()}
    )
    optimizer = make()
    model(torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))["loss"].backward()
    state = copy.deepcopy(optimizer.state_dict())
    require_fitting_optimizer_state(make(), state, "optimizer.pt", model=model)
    state["layers"][3]["state"][0]["exp_avg"] = torch.zeros(0)
    refused(model, make(), state, "exp_avg of norm.bias")
    state["layers"].pop()
    refused(model, make(), state, "the states of 5 layers, but the optimizer has 6")


# --- optimizers of other packages, by what they write


class Stand(torch.optim.Optimizer):
    """An optimizer whose package the test names."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("state1", torch.zeros(6, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)),
        ("absmax1", torch.zeros(1), torch.zeros(0)),
        ("qmap1", torch.zeros(256), torch.zeros(255)),
    ],
)
def test_states_of_8_bits(monkeypatch, name, good, bad):
    monkeypatch.setattr(Stand, "__module__", "bitsandbytes.optim.adamw")
    model = tiny()
    optimizer = Stand(model.parameters())
    state = {**optimizer.state_dict(), "state": {0: {"step": 3, name: good}}}
    require_fitting_optimizer_state(optimizer, state, "optimizer.pt", model=model)
    state["state"][0][name] = bad
    refused(model, optimizer, state, rf"as {name} of first\.weight")


@pytest.mark.parametrize(
    "package", ["apex.optimizers", "torch_npu.optim", "optimi", "deepspeed.ops.adam"]
)
def test_optimizer_step_values_that_are_not_python_numbers(monkeypatch, package):
    """States of other optimizers may have any shape."""
    model = tiny()
    optimizer = Stand(model.parameters())
    state = {**optimizer.state_dict(), "state": {0: {"exp_avg": torch.zeros(1)}}}
    monkeypatch.setattr(Stand, "__module__", "somewhere.else")
    require_fitting_optimizer_state(optimizer, state, "optimizer.pt", model=model)
    monkeypatch.setattr(Stand, "__module__", package)
    refused(model, optimizer, state, "exp_avg")


# --- parameters that are spread over processes


@pytest.fixture
def alone(tmp_path):
    """A process group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded_model(version):
    if version == 1:
        # torch deprecates it in favour of the second version, and warns that one process shares
        # nothing.
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(
            tiny(), device_id=torch.device("cpu"), use_orig_params=True
        )
    else:
        model = sharding.shard_fully(tiny(), init_device_mesh("cpu", (1,)), layers=["first"])
    return model, torch.optim.AdamW(model.parameters(), fused=version == 2)


@pytest.mark.parametrize("version", [1, 2])
def test_sharded_parameters_are_compared_as_a_whole(alone, version):
    with warnings.catch_warnings():
        model, optimizer = sharded_model(version)
        model(torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))["loss"].backward()
        optimizer.step()
        state = sharding.full_optimizer_state(model, optimizer, keep=True)
        fresh_model, fresh = sharded_model(version)
        sharding.load_full_optimizer_state(
            fresh_model, fresh, copy.deepcopy(state), file="optimizer.pt"
        )
        for wrong in (
            torch.zeros(1),
            torch.zeros(6, 8, dtype=torch.int64),
            torch.zeros(1).expand(6, 8),
        ):
            state["state"][0]["exp_avg"] = wrong
            _, fresh = pair = sharded_model(version)
            with pytest.raises(
                ValueError, match=r"optimizer\.pt cannot be loaded.* as exp_avg of first\.weight"
            ):
                sharding.load_full_optimizer_state(*pair, state, file="optimizer.pt")
            assert not fresh.state


# --- doors


def spoil(checkpoint):
    path = checkpoint / "optimizer.pt"
    state = load_torch(path)
    state["state"][0]["exp_avg"] = torch.zeros(1)
    save_torch(state, path)


@pytest.fixture
def written(tmp_path):
    make_trainer(
        tmp_path / "out", save_strategy="steps", save_steps=2, optim="adamw_torch_fused"
    ).train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    (checkpoint / "_manifest.json").unlink()
    return checkpoint


MESSAGE = re.compile(
    r"optimizer\.pt cannot be loaded into AdamW: .* exp_avg of (module\.|model\.)?first\.weight"
)


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch"])
def test_trainer_refuses_damaged_optimizer_states(written, tmp_path, optim):
    spoil(written)
    trainer = make_trainer(tmp_path / "new", optim=optim)
    with pytest.raises(ValueError, match=MESSAGE):
        trainer.train(resume_from_checkpoint=str(written))
    assert trainer.optimizer.state == {}


def fit(with_plugin, start=None, **changes):
    module = LossModule(tiny())
    with lightning_internals.quiet():
        trainer = lightning_trainer(
            plugins=[FolderCheckpointIO(module)] if with_plugin else [], **changes
        )
        trainer.fit(module, build_loader(points(), batch_size=4), ckpt_path=start)
    return trainer


@pytest.mark.parametrize("with_plugin", [True, False])
def test_lightning_refuses(written, with_plugin):
    assert fit(with_plugin, written).global_step == 4, "negative control"
    spoil(written)
    with pytest.raises(ValueError, match=MESSAGE):
        fit(with_plugin, written)


@pytest.mark.parametrize("with_plugin", [True, False])
def test_optimizer_states_in_a_lightning_file_are_checked(tmp_path, with_plugin):
    file = tmp_path / "file.ckpt"
    fit(False, max_steps=2).save_checkpoint(file)
    content = load_torch(file)
    content["optimizer_states"][0]["state"][0]["exp_avg"] = torch.zeros(1)
    torch.save(content, file)
    with pytest.raises(
        ValueError, match=r"file\.ckpt cannot be loaded into AdamW: .* exp_avg of model\.first"
    ):
        fit(with_plugin, file, max_steps=4)
