"""`use_liger_kernel`: Liger is asked to exchange the layers of the model that the reference
would give it.
"""

import importlib.machinery
import logging
import sys
from types import ModuleType

import pytest
import torch

from helpers.trainer.tiny_trainings import ARGUMENTS, Tiny, make_trainer
from lightrainer import Trainer, TrainingArguments
from lightrainer.lightning_modules.models.liger import apply_liger_kernels


@pytest.fixture
def liger(monkeypatch):
    """Stand-in for the package, which needs a GPU: records the calls."""
    calls = []
    package, module = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers")
    for stub in (package, module):
        stub.__spec__ = importlib.machinery.ModuleSpec(stub.__name__, None)
    module._apply_liger_kernel_to_instance = lambda **given: calls.append(given)
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    return calls


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 11}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    )


def tokens(count=8):
    ids = torch.randint(11, (count, 5), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


@pytest.mark.parametrize("config", [None, {"rope": True, "cross_entropy": False}])
def test_liger_is_asked_as_the_reference_asks(tmp_path, liger, monkeypatch, config):
    """For the same model, with the same keywords, once a training."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.integrations.liger, "is_liger_kernel_available", lambda: True)
    requests = []
    for api in (transformers, sys.modules["lightrainer"]):
        options = {
            **ARGUMENTS,
            "use_liger_kernel": True,
            "liger_kernel_config": config,
            "max_steps": 1,
        }
        args = api.TrainingArguments(output_dir=str(tmp_path), **options)
        trainer = api.Trainer(gpt2(), args, train_dataset=tokens())
        assert liger == []
        trainer.train()
        requests.append([{**call, "model": call["model"] is trainer.model} for call in liger])
        liger.clear()
    assert requests[0] == requests[1] == [{"model": True, **(config or {})}]


def test_liger_warns_and_leaves_other_models_alone(tmp_path, liger, caplog):
    caplog.set_level(logging.WARNING, logger="lightrainer")
    make_trainer(tmp_path, use_liger_kernel=True).train()
    assert liger == []
    assert "use_liger_kernel=True has no effect" in caplog.text
    assert "Tiny" in caplog.text


def test_liger_missing_package_gives_advice(tmp_path, monkeypatch):
    """When the Trainer is made: the reference says so only when it trains."""
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, use_liger_kernel=True)
    with pytest.raises(
        ImportError, match=r"use_liger_kernel=True.*pip install 'lightrainer\[liger\]'"
    ):
        Trainer(Tiny(), args)
    later = make_trainer(tmp_path)
    later.args.use_liger_kernel = True
    with pytest.raises(ImportError, match="use_liger_kernel"):
        later.train()


class Skipping(Tiny):
    """As a model with Liger's loss: it can do without the logits."""

    def __init__(self):
        super().__init__()
        self.skipped = []

    def forward(self, x, labels=None, skip_logits=None):
        if not self.training:
            self.skipped.append(skip_logits)
        output = super().forward(x, labels)
        if skip_logits:
            output["logits"] = None
        return output


class Overriding(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@pytest.mark.parametrize(
    ("options", "skips"),
    [
        ({}, True),
        ({"use_liger_kernel": False}, None),
        ({"compute_metrics": lambda prediction: {}}, None),
        ({"label_smoothing_factor": 0.1}, None),
        (
            {
                "compute_loss_func": (
                    lambda outputs, labels, num_items_in_batch: outputs["logits"].sum()
                )
            },
            None,
        ),
        ({"cls": Overriding}, None),
        ({"model": Tiny()}, None),
    ],
    ids=[
        "the loss only",
        "without Liger",
        "metrics",
        "smoothing",
        "another loss",
        "an override",
        "another model",
    ],
)
def test_liger_loss_only_evaluation_makes_no_logits(tmp_path, liger, options, skips):
    """As in 5.23, but only if no other part needs them and the model supports it."""
    options = {"use_liger_kernel": True, "model": Skipping(), **options}
    trainer = make_trainer(tmp_path, **options)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] > 0 or "compute_loss_func" in options
    if isinstance(trainer.model, Skipping):
        assert set(trainer.model.skipped) == {skips}


def test_layers_of_a_model_become_those_of_liger():
    """With the package itself, where it is installed; what its layers compute needs a GPU."""
    pytest.importorskip("liger_kernel")
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=11, **sizes))
    layers = model.model.layers[0].input_layernorm, model.model.layers[0].mlp
    before = [layer.forward.__func__.__module__.split(".")[0] for layer in layers]
    apply_liger_kernels(model, {"swiglu": False})
    after = [layer.forward.__func__.__module__.split(".")[0] for layer in layers]
    assert (before, after) == (["transformers"] * 2, ["liger_kernel", "transformers"])
