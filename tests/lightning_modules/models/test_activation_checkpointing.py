"""Activations computed again: the same bits, and fewer tensors kept from the forward to the
backward pass.
"""

import copy
import inspect
import logging

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.models.activation_checkpointing import (
    checkpoint_activations,
    enable_activation_checkpointing,
    find_layers,
)


class Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 8))
        self.norm = norm(8)

    def forward(self, x, *, scale=1.0):
        return self.norm(x + scale * self.inner(x))


class Stack(nn.Module):
    def __init__(self, blocks=4, norm=nn.LayerNorm):
        super().__init__()
        self.blocks = nn.ModuleList(Block(norm) for _ in range(blocks))
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return {"loss": nn.functional.cross_entropy(self.head(x), labels)}


class Nested(nn.Module):
    """No list of layers, but parts that have parts."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Block(), Block()
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels):
        return {
            "loss": nn.functional.cross_entropy(self.head(self.decoder(self.encoder(x))), labels)
        }


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x, labels):
        return {
            "loss": nn.functional.cross_entropy(
                self.second(self.dropout(self.first(x).tanh())), labels
            )
        }


def made(kind, **kwargs):
    torch.manual_seed(3)
    return kind(**kwargs)


def step(model, optimizer=None, seed=5):
    """One forward and backward pass.

    Returns:
        The loss, the number of bytes kept in between, and the state of the global generator
        afterwards.
    """
    torch.manual_seed(seed)
    x, labels = torch.randn(6, 8), torch.randint(3, (6,))
    saved_bytes = {}

    def pack(tensor):
        if not isinstance(tensor, nn.Parameter):
            saved_bytes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x=x, labels=labels)["loss"]
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), sum(saved_bytes.values()), torch.get_rng_state()


def trained(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [step(model, optimizer, seed)[::2] for seed in range(steps)]
    return [loss for loss, _ in losses], [state for _, state in losses], model.state_dict()


def assert_same(left, right):
    assert left[0] == right[0]
    assert all(torch.equal(first, second) for first, second in zip(left[1], right[1], strict=True))
    assert left[2].keys() == right[2].keys()
    assert all(torch.equal(left[2][name], right[2][name]) for name in left[2])


KINDS = {
    "blocks": (Stack, {}),
    "blocks with statistics": (Stack, {"norm": nn.BatchNorm1d}),
    "nested": (Nested, {}),
    "flat": (Flat, {}),
}


OPTIONS = [{}, {"every_n_layers": 3}, {"offload": True}]
# from torch 2.9 on
if "early_stop" in inspect.signature(torch.utils.checkpoint.checkpoint).parameters:
    OPTIONS.append({"early_stop": False})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_weights_statistics_and_generators_stay_the_same_bits(kind, options):
    model, kwargs = KINDS[kind]
    changed = made(model, **kwargs)
    checkpoint_activations(changed, **options)
    assert_same(trained(made(model, **kwargs)), trained(changed))


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_bytes_are_kept(kind):
    """Fewer still where they are offloaded."""
    model, kwargs = KINDS[kind]
    saved_bytes = [step(made(model, **kwargs))[1]]
    for options in ({}, {"offload": True}):
        changed = made(model, **kwargs)
        checkpoint_activations(changed, **options)
        saved_bytes.append(step(changed)[1])
    assert saved_bytes[1] < 0.6 * saved_bytes[0]
    assert saved_bytes[2] < saved_bytes[1]


def test_activation_checkpointing_every_nth_layer():
    saved_bytes = []
    for every in (1, 2, 4, 100):
        model = made(Stack)
        checkpoint_activations(model, every_n_layers=every)
        saved_bytes.append(step(model)[1])
        assert ["forward" in vars(block) for block in model.blocks] == [
            index % every == 0 for index in range(4)
        ]
    assert saved_bytes[0] < saved_bytes[1] < saved_bytes[2] == saved_bytes[3]


def test_activation_checkpointing_finds_the_layers():
    def names(model):
        return [name for name, _ in find_layers(model)]

    assert names(Stack(2)) == ["blocks.0", "blocks.1"]
    assert names(Nested()) == ["encoder", "decoder"]
    assert names(Flat()) == [""]
    coders = [f"{side}coder.layers.{index}" for side in ("en", "de") for index in range(2)]
    assert names(nn.Transformer(8, 2, 2, 2, 8, batch_first=True)) == coders
    assert names(nn.Sequential(nn.Linear(2, 2), nn.Sequential(Block(), Block()))) == ["1.0", "1.1"]
    assert names(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == [""]


def test_activation_checkpointing_restores_the_model(caplog):
    model = made(Stack)
    names = [name for name, _ in model.named_modules()]
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        undo = checkpoint_activations(model)
    assert "blocks.0, blocks.1" in caplog.text
    assert [name for name, _ in model.named_modules()] == names
    assert type(model.blocks[0]) is Block
    assert model.state_dict().keys() == made(Stack).state_dict().keys()
    assert inspect.signature(model.blocks[0].forward) == inspect.signature(made(Block).forward)
    undo()
    assert not any("forward" in vars(module) for module in model.modules())


def test_activation_checkpointing_restores_a_forward_of_the_instance():
    model, calls = made(Stack), []
    original = model.blocks[0].forward
    counted = model.blocks[0].forward = lambda *args, **kwargs: (
        calls.append(1) or original(*args, **kwargs)
    )
    undo = checkpoint_activations(model)
    step(model)
    assert len(calls) == 2, "in the forward and again in the backward pass"
    undo()
    assert model.blocks[0].forward is counted


def test_activation_checkpointing_copy_runs_its_own_weights():
    """As callbacks that average weights make one in the middle of a training."""
    model = made(Stack)
    checkpoint_activations(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    assert step(other)[0] != step(model)[0] == step(made(Stack))[0]
    assert other.blocks[0].inner[0].weight.grad is not None


def test_compiled_models_are_the_same():
    """With autograd compiled too: torch's backend "eager" runs checkpoints without setting the
    generators back.
    """
    torch._dynamo.reset()
    model = made(Stack)
    checkpoint_activations(model)
    model.compile(backend="aot_eager")
    assert_same(trained(made(Stack)), trained(model))


class Older(Stack):
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.told = gradient_checkpointing_kwargs


class Newer(Older):
    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs=None, every_n_layers=1, offload=False
    ):
        self.told = (activation_checkpointing_kwargs, every_n_layers, offload)


def test_activation_checkpointing_uses_the_method_of_the_model():
    older, newer = Older(), Newer()
    enable_activation_checkpointing(older)
    assert older.told is None
    enable_activation_checkpointing(older, use_reentrant=True)
    assert older.told == {"use_reentrant": True}
    enable_activation_checkpointing(newer, use_reentrant=True, every_n_layers=2, offload=True)
    assert newer.told == ({"use_reentrant": True}, 2, True)
    assert not any("forward" in vars(module) for module in [*older.modules(), *newer.modules()])
    for option, value in (("every_n_layers", 2), ("offload", True)):
        with pytest.raises(ValueError, match=f"{option}={value} .* Older"):
            enable_activation_checkpointing(Older(), **{option: value})


def gpt2():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 4, "n_head": 2, "vocab_size": 20}
    return made(
        transformers.GPT2LMHeadModel,
        config=transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0),
    )


def gpt2_step(model):
    model.train()
    torch.manual_seed(1)
    ids = torch.randint(20, (2, 9))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.nbytes) or t, lambda t: t
    ):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.item(), model.transformer.wpe.weight.grad, sum(sizes)


@pytest.mark.parametrize(
    "settings", [{"every_n_layers": 2}, {"offload": True}, {"every_n_layers": 2, "offload": True}]
)
def test_models_of_transformers_know_the_newer_settings_too(settings):
    plain, all_of_them, model = gpt2(), gpt2(), gpt2()
    enable_activation_checkpointing(all_of_them)
    enable_activation_checkpointing(model, **settings)
    (loss, gradient, most), (_, _, least), (other, same, saved) = map(
        gpt2_step, (plain, all_of_them, model)
    )
    # Gradients that meet are added in another order where a part is computed again.
    assert other == pytest.approx(loss)
    torch.testing.assert_close(same, gradient)
    if settings.get("every_n_layers"):
        assert [layer.gradient_checkpointing for layer in model.transformer.h] == [
            True,
            False,
            True,
            False,
        ]
        assert least < saved < most
    else:
        assert saved < least < most
