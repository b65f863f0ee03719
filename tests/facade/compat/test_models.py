"""Facts about models: what the reference says of the same ones."""

import types

import pytest
import torch
from torch import nn
from transformers import trainer_optimizer, trainer_pt_utils, trainer_utils

from lightrainer.facade.compat import models


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 2, bias=False)))
        self.block[0].weight.requires_grad_(False)
        self.bias_of_all = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize("names", [None, [], ["bias", "layernorm"], [r"block\.2", "norm"], ["weight$"], ["^weight"]])
@pytest.mark.parametrize("kinds", [[], [nn.LayerNorm], (nn.Linear, nn.Embedding)])
def test_parameter_names(names, kinds):
    assert models.get_parameter_names(Net(), kinds, names) == trainer_pt_utils.get_parameter_names(Net(), kinds, names)


def test_facts_about_a_model():
    for trainable in (False, True):
        assert models.get_model_param_count(Net(), trainable) == trainer_pt_utils.get_model_param_count(
            Net(), trainable
        )
    for name in ("Net", "LayerNorm", "Nothing"):
        net = Net()
        assert models.get_module_class_from_name(net, name) is trainer_pt_utils.get_module_class_from_name(net, name)
    for given in ("a.*", "block.0", ["block"], ["x", r".*\.\d"], [], ["emb.d"]):
        for key in ("block.0", "embed", "other"):
            for more in (False, True):
                ours = models.check_target_module_exists(given, key, more)
                assert ours == trainer_utils.check_target_module_exists(given, key, more), (given, key)
    for one in (torch.optim.SGD, Net, lambda: 0, 3):
        assert models.is_optimizer_factory(one) == trainer_optimizer.is_optimizer_factory(one)
    assert models.unwrap_peft_model(net) is net
    assert not models._is_peft_model(net)


def test_masks_that_look_ahead():
    causal = torch.tril(torch.ones(3, 3))
    large = torch.triu(torch.full((3, 3), -1e9), diagonal=1)
    masks = [None, torch.ones(2, 3), causal[None], causal[None, None], torch.ones(1, 3, 3), large[None, None]]
    masks += [torch.ones(1, 1, 1, 1), torch.ones(3), large[None] * 0 - 1, torch.ones(2, 2, 3, 3)]
    found = [models.is_attention_mask_causal(mask) for mask in masks]
    assert found == [trainer_pt_utils.is_attention_mask_causal(mask) for mask in masks]
    assert len(set(found)) == 2


def quantized(**facts):
    return types.SimpleNamespace(**facts)


@pytest.mark.parametrize(
    "model",
    [
        quantized(),
        quantized(is_quantized=True),
        quantized(is_quantized=True, _orig_mod=1),
        quantized(is_quantized=True, _hf_peft_config_loaded=True),
        quantized(
            is_quantized=True,
            hf_quantizer=types.SimpleNamespace(
                is_trainable=False, is_qat_trainable=True, quantization_config=types.SimpleNamespace(quant_method="q")
            ),
        ),
        quantized(is_quantized=True, hf_quantizer=types.SimpleNamespace(is_trainable=True, is_qat_trainable=True)),
        quantized(is_quantized=True, hf_quantizer=types.SimpleNamespace(is_trainable=True)),
    ],
)
def test_quantized_models_that_cannot_be_trained(model):
    outcomes = []
    for check in (models.validate_quantization_for_training, trainer_utils.validate_quantization_for_training):
        try:
            check(model)
            outcomes.append(None)
        except ValueError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
