"""The members of `trainer.accelerator` do what those of the reference do: the same calls, in one
process and two.
"""

import pytest
import torch

from helpers.accelerator.accelerator_calls import CALLS, outcome
from helpers.accelerator.accelerator_loops import train
from helpers.accelerator.accelerator_ranks_script import AS_THERE
from helpers.trainer.tiny_trainings import arguments
from lightrainer.facade.accelerator.accelerator import Accelerator

accelerate = pytest.importorskip("accelerate")
pytestmark = [
    # Of the reference's: of contexts without an effect, of schedules that are counted on.
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    )
]

TENSOR = ["torch.float32", [4], [0.0, 1.0, 100.0, 101.0]]
BETTER = {
    # The reference joins the letters of a text, and the keys of a dict, and takes no single things.
    "gather_for_metrics: none": ["list", [None, None]],
    "gather_for_metrics: text": ["list", ["text", "text"]],
    "gather_for_metrics: a Python number": ["list", [3, 3]],
    "gather_for_metrics: an array": ["array", [0, 1, 2, 0, 1, 2]],
    "gather_for_metrics: text among them": [
        "dict",
        {"a": TENSOR, "b": ["list", ["text", "text"]]},
    ],
    "gather_for_metrics: None among them": ["tuple", [TENSOR, ["list", [None, None]]]],
}
"""In two processes: what comes of it here."""


def reset():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture
def both(tmp_path):
    """Ours, and the reference's."""
    reset()
    yield (
        Accelerator(
            arguments(tmp_path, gradient_accumulation_steps=3, accelerator_config=AS_THERE)
        ),
        accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3),
    )
    reset()


@pytest.mark.parametrize("name", CALLS)
def test_custom_loop_in_one_process(both, name):
    ours, theirs = both
    assert outcome(CALLS[name], ours) == outcome(CALLS[name], theirs)


@pytest.mark.parametrize("name", CALLS)
def test_custom_loop_in_two_processes(two_ranks, name):
    for rank in two_ranks[1]:
        ours, theirs = rank["calls"][name]
        if name in BETTER:
            assert ours == BETTER[name]
            assert ours != theirs
        else:
            assert ours == theirs


def test_custom_loop_in_half_precision(tmp_path):
    """bf16: to the same bits."""
    reset()
    ours = Accelerator(arguments(tmp_path, gradient_accumulation_steps=3, bf16=True))
    theirs = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3, mixed_precision="bf16")
    actual, expected = outcome(train, ours), outcome(train, theirs)
    reset()
    assert actual == expected
    full = Accelerator(arguments(tmp_path, gradient_accumulation_steps=3))
    assert actual != outcome(train, full)


def test_custom_loop_in_fp16(tmp_path):
    """Unlike in the reference on the CPU losses are scaled: steps with infinite gradients are
    skipped and reported.
    """
    ours = Accelerator(arguments(tmp_path, fp16=True))
    full = Accelerator(arguments(tmp_path))
    ours.scaler.load_state_dict({**ours.scaler.state_dict(), "scale": 128.0})  # no overflow
    observations, weights, *_ = train(ours, clip=1.0)
    _, expected, *_ = train(full, clip=1.0)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-2, rtol=2e-2)
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = ours.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.weight.detach().clone()
    ours.backward(model(torch.tensor([float("inf")])).sum())
    optimizer.step()
    assert optimizer.step_was_skipped
    assert ours.optimizer_step_was_skipped
    assert torch.equal(model.weight, before)
    assert observations
