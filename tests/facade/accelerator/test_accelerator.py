"""The members of `trainer.accelerator` that scripts use, in one process; several processes are
tested elsewhere.
"""

import pytest
import torch
from torch import nn

from helpers.trainer.tiny_trainings import arguments, tiny
from lightrainer.facade.accelerator.accelerator import Accelerator


# What scripts and libraries reach through `trainer.accelerator`.
@pytest.fixture
def accelerator(tmp_path):
    return Accelerator(arguments(tmp_path))


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [({}, None), ({"bf16": True}, torch.bfloat16), ({"fp16": True}, torch.float16)],
)
def test_autocast_is_that_of_the_precision(tmp_path, asked, dtype):
    """In a training or not; and once more inside itself."""
    accelerator = Accelerator(arguments(tmp_path, **asked))
    assert (
        accelerator.mixed_precision
        == {None: "no", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    )
    with accelerator.autocast(), accelerator.autocast():
        assert torch.is_autocast_enabled("cpu") == (dtype is not None)
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == (dtype or torch.float32)
    assert not torch.is_autocast_enabled("cpu")


def test_accelerator_scaler_exists_only_for_float16(tmp_path):
    """It follows the arguments, as the precision does."""
    accelerator = Accelerator(arguments(tmp_path, bf16=True))
    assert accelerator.scaler is None
    accelerator.args.mixed_precision = "fp16"
    assert isinstance(accelerator.scaler, torch.amp.GradScaler)
    assert accelerator.scaler is accelerator.scaler
    assert not accelerator.optimizer_step_was_skipped


def scaled_gradients(accelerator):
    """A model with a gradient of 3, scaled; and its optimizer."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accelerator.scaler.scale(model(torch.tensor([3.0])).sum()).backward()
    return model, optimizer


@pytest.mark.parametrize(
    "how", ["clipped", "asked for", "asked for an optimizer", "asked for twice", "in a list"]
)
def test_accelerator_unscales_gradients(tmp_path, how):
    """Unscaled once, however often it is called; the control has the gradients before."""
    accelerator = Accelerator(arguments(tmp_path, fp16=True))
    model, optimizer = scaled_gradients(accelerator)
    assert model.weight.grad.item() == 3.0 * 65536.0
    optimizers = {"asked for an optimizer": [optimizer], "in a list": [[optimizer]]}.get(how, [])
    with accelerator.training(None, lambda: optimizer):
        if how == "clipped":
            assert accelerator.clip_grad_norm_(model.parameters(), 1.0) == 3.0
            assert model.weight.grad.item() == pytest.approx(1.0)
            return
        for _ in range(1 + (how == "asked for twice")):
            accelerator.unscale_gradients(*optimizers)
    assert model.weight.grad.item() == 3.0


def test_invalid_reductions(accelerator, caplog):
    """A scale counts on TPUs only, as in the reference."""
    with pytest.raises(TypeError, match=r"tensors, but this is a str: 'text'"):
        accelerator.reduce(["text"])
    with pytest.raises(ValueError, match="reduction='none'"):
        accelerator.reduce(torch.ones(1), reduction="none")
    assert accelerator.reduce(torch.ones(1), scale=2.0) == 1.0
    assert "scale=2.0 is ignored" in caplog.text


def test_prepare_returns_objects_in_order(accelerator):
    """One object alone, several as a tuple in their order; models are moved, loaders rebuilt."""
    model = tiny()
    optimizer, loader = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.utils.data.DataLoader([1, 2]),
    )
    assert accelerator.prepare(model) is model
    same, stepped, prepared = accelerator.prepare(model, optimizer, loader)
    assert same is model
    assert stepped.optimizer is optimizer
    assert accelerator.prepare(stepped) is stepped
    assert [batch.tolist() for batch in prepared] == [[1], [2]]
    assert accelerator.prepare(prepared) is prepared
    assert accelerator.prepare_model(model, evaluation_mode=True) is model
