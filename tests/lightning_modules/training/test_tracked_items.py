"""The number of items notes whether a loss is computed from it, and is otherwise an ordinary
tensor.
"""

import copy

import pytest
import torch

from lightrainer.lightning_modules.training.tracked_items import TrackedItems

USES = {
    "divides a loss": lambda items: torch.ones(3).sum() / items,
    "divides a loss after a copy": lambda items: torch.ones(3).sum() / items.to("cpu").float(),
    "divides a loss in parts": lambda items: torch.ones(3).sum() / (items // 2).clamp(min=1),
    "changes a tensor in place": lambda items: torch.ones(()).div_(items),
    "is stacked with others": lambda items: torch.stack([items, torch.tensor(1)]),
    "is read as a number": lambda items: 1.0 / items.item(),
    "becomes a float": lambda items: 1.0 / float(items),
}

NO_USES = {
    "is passed on": lambda items: items,
    "is compared with None": lambda items: items is not None,
    "is compared with a number": lambda items: bool(items > 0),
    "is copied": lambda items: copy.copy(items),
    "is moved": lambda items: items.to("cpu", torch.float32).unsqueeze(0),
    "is described": lambda items: (
        f"{items}",
        repr(items),
        items.shape,
        items.device,
        items.dtype,
        items.dim(),
    ),
}


@pytest.mark.parametrize("name", USES)
def test_tracked_items_note_a_use(name):
    items = TrackedItems.of(torch.tensor(6))
    result = USES[name](items)
    assert items.use.is_used
    assert not isinstance(result, TrackedItems)


@pytest.mark.parametrize("name", NO_USES)
def test_tracked_items_ignore_other_operations(name):
    items = TrackedItems.of(torch.tensor(6))
    NO_USES[name](items)
    assert not items.use.is_used


def test_tracked_items_compute_as_a_plain_number():
    loss = torch.tensor(7.0, requires_grad=True)
    quotient = loss / TrackedItems.of(torch.tensor(6))
    quotient.backward()
    assert type(quotient) is torch.Tensor
    assert torch.equal(quotient, torch.tensor(7.0) / 6)
    assert torch.equal(loss.grad, torch.tensor(1.0) / 6)


class Summing(torch.nn.Linear):
    """Divides the sum of its losses by the number of items."""

    def forward(self, x, **kwargs):
        return super().forward(x).square().sum() / kwargs["num_items_in_batch"].to(x.device)


class Averaging(torch.nn.Linear):
    """Takes any keyword, and returns a mean."""

    def forward(self, x, **kwargs):
        return super().forward(x).square().mean()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("model_class", [Summing, Averaging])
def test_compiled_code_notes_each_use(backend, model_class):
    torch.compiler.reset()
    model = model_class(2, 1)
    model.compile(backend=backend)
    x = torch.ones(3, 2)
    for number in (3, 4, 5):
        items = TrackedItems.of(torch.tensor(number))
        loss = model(x, num_items_in_batch=items)
        loss.backward()
        assert items.use.is_used is (model_class is Summing)
        assert torch.equal(
            loss, model_class.forward(model, x, num_items_in_batch=torch.tensor(number))
        )
