"""The pretended device notices what a real one would not forgive, and leaves nothing behind."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.devices.pretended_cuda import DEVICE, pretended_device
from lightrainer import TrainingArguments

pytestmark = pytest.mark.cpu_only("the test makes a pretended device itself")


@pytest.fixture
def device():
    with pretended_device() as device:
        yield device


def test_tensors_of_two_devices_are_not_mixed(device):
    on_device = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="on the same device"):
        on_device + torch.ones(2)
    with pytest.raises(RuntimeError, match="indices should be on the same device"):
        torch.ones(2)[on_device.long()]
    assert (on_device + torch.tensor(1.0)).device == DEVICE, "a number may be of the CPU"
    assert on_device[torch.tensor([1])].device == DEVICE, "and so may indices"


def test_tensor_does_not_become_an_array(device):
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(torch.ones(2, device="cuda"))
    assert torch.ones(2, device="cuda").cpu().numpy().sum() == 2


@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: bool(tensor[0] > 0),
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.to("cpu"),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: torch.nonzero(tensor),
        lambda tensor: torch.equal(tensor, tensor),
        lambda tensor: torch.zeros(2).copy_(tensor),
        lambda tensor: torch.cuda.synchronize(),
        lambda tensor: pickle.dumps(tensor),
    ],
)
def test_pretended_cuda_counts_waits_by_line(device, read):
    tensor = torch.ones(2, device="cuda")
    assert device.num_waits() == 0
    read(tensor)
    [(_, line)] = device.waits
    assert device.num_waits() == 1
    assert line.startswith("test_pretended_cuda.py:")


def test_computations_do_not_wait(device):
    tensor = torch.ones(2, device="cuda", requires_grad=True)
    loss = (tensor * 2).sum() / torch.tensor(3.0)
    loss.backward()
    tensor.to("cpu", non_blocking=True)
    assert tensor.grad is not None
    assert device.num_waits() == 0


def test_copies_to_the_device_are_counted_by_whether_they_wait(device):
    on_host = torch.ones(2)
    on_host.to("cuda")
    on_host.to("cuda", non_blocking=True)
    on_host.pin_memory().to("cuda")
    assert device.uploads == {False: 3}
    on_host.pin_memory().to("cuda", non_blocking=True)
    assert device.uploads == {False: 3, True: 1}


def test_pretended_cuda_has_a_separate_generator(device):
    torch.manual_seed(3)
    drawn = torch.rand(2, device="cuda"), torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), drawn[1]), (
        "what is drawn on the device changes nothing on the CPU"
    )
    assert torch.equal(torch.rand(2, device="cuda"), drawn[0])
    assert not torch.equal(torch.rand(2, device="cuda"), drawn[0])


def test_model_moves_with_its_optimizer_and_comes_back(device):
    model = nn.Linear(2, 1)
    weight = model.weight
    expected = weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to("cuda")
    assert model.weight is weight
    assert weight.device == DEVICE

    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    assert copy.deepcopy(model).weight.device == DEVICE
    assert torch.equal(model.cpu().weight, expected - 0.5)


def test_hooks_of_a_parameter_move_with_it(device):
    model = nn.Linear(2, 1)
    calls = []
    model.weight.register_hook(lambda gradient: calls.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda weight: calls.append("accumulated"))
    for _ in range(2):
        model.to("cuda")
        model(torch.ones(1, 2, device="cuda")).sum().backward()
    assert calls == ["gradient", "accumulated"] * 2


def test_gradient_comes_back_from_the_cpu(device):
    tensor = torch.ones(2, device="cuda", requires_grad=True)
    (tensor.cpu() * 3).sum().backward()
    assert tensor.grad.device == DEVICE
    assert tensor.grad.tolist() == [3, 3]


def test_pretended_cuda_is_visible_in_other_threads(device):
    tensors = []
    thread = threading.Thread(target=lambda: tensors.append(torch.ones(2, device="cuda")))
    thread.start()
    thread.join()
    assert tensors[0].device == DEVICE


def test_attention_with_dropout_is_causal(device):
    """A value of the last token reaches no other."""
    query = key = torch.ones(9, 1, 4, 8, device="cuda")
    value = torch.zeros(9, 1, 4, 8, device="cuda")
    value[:, :, -1] = 1
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, dropout_p=0.1, is_causal=True
    )
    assert output.device == DEVICE
    assert output[:, :, :-1].count_nonzero() == 0 < output.count_nonzero()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_dropout_is_that_of_the_forward_pass(device, use_reentrant):
    tensor = torch.ones(20, device="cuda", requires_grad=True)
    result = checkpoint(nn.functional.dropout, tensor, 0.5, use_reentrant=use_reentrant)
    before = device.generator.get_state()
    result.sum().backward()
    assert torch.equal(tensor.grad, result)
    assert torch.equal(device.generator.get_state(), before)


def test_tensor_moves_to_the_device_of_another(device):
    assert torch.ones(2).to(torch.ones(1, dtype=torch.float64, device="cuda")).device == DEVICE


def test_pretended_cuda_leaves_nothing_behind(tmp_path):
    before = torch.cuda.is_available(), torch.accelerator.is_available(), torch.load
    args = TrainingArguments(str(tmp_path)).device.type
    with pretended_device():
        assert torch.cuda.is_available()
        assert TrainingArguments(str(tmp_path)).device == DEVICE
    assert TrainingArguments(str(tmp_path)).device.type == args
    assert before == (torch.cuda.is_available(), torch.accelerator.is_available(), torch.load)
    assert torch.ones(2).device.type == "cpu"
    if not before[0]:
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            torch.ones(2, device="cuda")
