"""The state of an optimizer on fake tensors against that of the real optimizer."""

import pytest
import torch

from lightrainer.lightning_modules.optim import (
    OptimizerConfig,
    build_optimizer,
    optimizer_class_and_kwargs,
)
from lightrainer.tools.estimate import Job, ModelShape, estimate
from lightrainer.tools.estimate.decoder import Decoder
from lightrainer.tools.estimate.estimation import OPTIMIZERS, PRECISIONS, count_parameters

SHAPE = ModelShape(
    layers=3,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_size=8,
    intermediate=48,
    vocabulary=40,
)
PER_PARAMETER = {"adamw_torch_fused": 2, "adamw_torch": 2, "sgd": 0, "adagrad": 1, "rmsprop": 1}
"""Numbers of state for each parameter, by the table of docs/user/scaling.md."""


def stepped(name, dtype):
    """Bytes of state after a step."""
    torch.manual_seed(0)
    model = Decoder(SHAPE, SHAPE.layers).to(dtype)
    chosen, kwargs = optimizer_class_and_kwargs(OptimizerConfig(name=name), model)
    optimizer = build_optimizer(chosen, kwargs, model, [{"params": list(model.parameters())}])
    model(torch.randint(40, (2, 8)), False).backward()
    optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if torch.is_tensor(value) and value.numel() > 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_estimate_of_optimizer_states_equals_the_optimizer(name, precision):
    width = PRECISIONS[precision].weights
    job = Job(model=SHAPE, optim=name, precision=precision, sequence=8)
    estimated = estimate(job).memory.optimizer
    assert estimated == stepped(name, torch.float32 if width == 4 else torch.bfloat16)
    if name in PER_PARAMETER:
        assert estimated == PER_PARAMETER[name] * width * count_parameters(SHAPE)
    else:
        assert 0 < estimated < width * count_parameters(SHAPE)
