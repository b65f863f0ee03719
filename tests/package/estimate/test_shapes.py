"""The weights of a model, by its configuration, its files, or its size."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from lightrainer.tools.estimate import model_from_config, model_from_folder, model_of_size


def test_weights_beside_the_configuration_are_counted_without_being_read(tmp_path):
    weights = {
        "model.embed_tokens.weight": torch.zeros(11, 4),
        "model.layers.0.mlp.weight": torch.zeros(6, 4),
        "model.layers.1.mlp.weight": torch.zeros(6, 4),
        "model.norm.weight": torch.zeros(4),
    }
    save_file(weights, tmp_path / "model.safetensors")
    config = {
        "model_type": "something",
        "num_hidden_layers": 2,
        "hidden_size": 4,
        "num_attention_heads": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 11}))
    shape = model_from_folder(tmp_path)
    assert (shape.parameters, shape.layer_parameters, shape.root_parameters) == (96, 24, 48)
    assert {tensor.role for tensor in shape.tensors if tensor.shape == (11, 4)} == {"embedding"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_estimate_without_weights_assumes_a_decoder(family):
    """Exactly, but for biases and position embeddings."""
    sizes = {"vocab_size": 32000, "intermediate_size": 2048, "n_positions": 512}
    config = AutoConfig.for_model(
        family, hidden_size=512, num_hidden_layers=3, num_attention_heads=8, **sizes
    )
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(config)
    shape = model_from_config(json.loads(config.to_json_string(use_diff=False)))
    counted = sum(parameter.numel() for parameter in real.parameters())
    assert shape.parameters == (pytest.approx(counted, rel=0.02) if family == "gpt2" else counted)
    assert "decoder without biases" in shape.assumed


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff\xff\xff\xff\xff\x00\x00\x00{}")
    with pytest.raises(ValueError, match="not a safetensors file"):
        model_from_folder(tmp_path)


@pytest.mark.parametrize("parameters", [12_345, 124_000_000, 7 * 10**9, 10**12])
def test_estimate_model_of_a_size_has_that_size(parameters):
    shape = model_of_size(parameters)
    assert shape.parameters == parameters
    assert shape.hidden % shape.heads == 0
    if parameters >= 10**6:
        assert shape.heads % 8 == shape.intermediate % 8 == 0  # splits over a machine
    if parameters >= 10**9:
        assert 1.5 < shape.intermediate / shape.hidden < 4
        assert 60 < shape.hidden / shape.layers < 260
        assert shape.root_parameters < 0.2 * parameters


def test_given_numbers_are_taken():
    shape = model_of_size(
        layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocabulary=128256
    )
    given = (
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.intermediate,
        shape.vocabulary,
    )
    assert given == (32, 4096, 32, 8, 14336, 128256)
    assert shape.assumed == ""
    # Llama 3 8B has 8,030,261,248, with a head of its own.
    assert shape.parameters == 8_030_261_248 - 128256 * 4096


@pytest.mark.parametrize("setting", [{"is_encoder_decoder": True}, {"num_local_experts": 8}])
def test_models_that_are_no_plain_decoders_are_refused(setting):
    config = {"num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2, **setting}
    with pytest.raises(ValueError, match="only decoders without experts"):
        model_from_config(config)


NUMBERS = [
    ({"layers": 2}, "params: pass the number"),
    ({"parameters": 10**6, "layers": 50, "hidden": 512}, "params=1,000,000, but"),
    ({"layers": 2, "hidden": 512, "heads": 7}, "heads=7 does not divide hidden=512"),
]


@pytest.mark.parametrize(("numbers", "message"), NUMBERS)
def test_contradictions_are_named(numbers, message):
    with pytest.raises(ValueError, match=message):
        model_of_size(**numbers)
