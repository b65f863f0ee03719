"""The dimensions of a model, by its name or its configuration."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lightrainer.tools.estimate import read_shape
from lightrainer.tools.estimate.estimation import count_parameters


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_estimate_counts_the_parameters_of_the_model(family, tmp_path):
    """Exactly, except for biases and position embeddings."""
    sizes = {"vocab_size": 32000, "intermediate_size": 2048, "n_positions": 512}
    config = AutoConfig.for_model(
        family, hidden_size=512, num_hidden_layers=3, num_attention_heads=8, **sizes
    )
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(config)
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    counted = sum(parameter.numel() for parameter in real.parameters())
    expected = pytest.approx(counted, rel=0.02) if family == "gpt2" else counted
    assert count_parameters(read_shape(tmp_path)) == expected


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("1B", 1_235_814_400),
        ("8B", 8_030_261_248),
        ("70B", 70_553_706_496),
        ("405B", 405_853_388_800),
    ],
)
def test_estimate_known_models_have_the_parameters_of_llama_3(name, parameters):
    assert count_parameters(read_shape(name)) == parameters


@pytest.mark.parametrize("setting", [{"is_encoder_decoder": True}, {"num_local_experts": 8}])
def test_estimate_refuses_models_other_than_decoders(setting, tmp_path):
    config = {"num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2, **setting}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="only decoders without experts"):
        read_shape(tmp_path)


def test_estimate_names_a_missing_dimension(tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"num_hidden_layers": 2, "hidden_size": 4}))
    with pytest.raises(ValueError, match=r"num_attention_heads.* so heads is unknown"):
        read_shape(file)
