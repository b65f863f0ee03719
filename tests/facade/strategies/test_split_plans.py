"""Tensor parallelism before it runs: which layers are split how, and the messages where that is
impossible.
"""

import importlib.util

import pytest
import torch
from torch import nn

from helpers.trainer.four_processes import of_four
from lightrainer.facade.strategies.plan import translate
from lightrainer.lightning_modules.distributed.tensor_parallel import (
    _styles,
    sharding_problems,
    tensor_parallel_plan,
)
from lightrainer.lightning_modules.distributed.tensor_parallel_styles import STYLES

PAIR = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}


class Layer(nn.Module):
    def __init__(self, inner: int = 8):
        super().__init__()
        self.up = nn.Linear(4, inner)
        self.down = nn.Linear(inner, 4)
        self.norm = nn.LayerNorm(4)


class Layers(nn.Module):
    def __init__(self, plan=PAIR, inner: int = 8):
        super().__init__()
        self.layers = nn.ModuleList([Layer(inner), Layer(inner)])
        self.words = nn.Embedding(7, 4)
        if plan is not None:
            self.tp_plan = plan


FAULTS = [
    (Layers(None), "Layers has no plan for tensor parallelism. Give it a tp_plan"),
    (
        Layers({**PAIR, "layers.*.norm": "packed_colwise"}),
        "'packed_colwise' (layers.*.norm), which is not supported",
    ),
    (Layers({"layers.*.up": "colwize"}), "Did you mean 'colwise'"),
    (
        Layers({"layers.*.upper": "colwise", **PAIR}),
        "'layers.*.upper', but the model has no module of that name",
    ),
    (Layers({"layers.*": "colwise"}), "layers.1: 'colwise' is for nn.Linear, but this is a Layer"),
    (
        Layers(inner=9),
        (
            "layers.0.up: out_features=9 is not divisible by tp_size=2. Choose a tp_size that "
            "divides it"
        ),
    ),
]


@pytest.mark.parametrize(("model", "message"), FAULTS, ids=[message[:30] for _, message in FAULTS])
def test_models_that_cannot_be_split_are_refused_before_the_run(tmp_path, model, message):
    args = of_four(tmp_path, parallelism_config={"dp_shard_size": 2, "tp_size": 2})
    with pytest.raises(ValueError, match="parallelism_config: tp_size=2: ") as error:
        translate(args, model=model).strategy.check(args, model)
    assert message in str(error.value)
    assert "Use dp_shard_size instead" in str(error.value)


@pytest.mark.parametrize(
    "model", [Layers(), Layers({**PAIR, "words": "embedding_rowwise"}), Layers(inner=10)]
)
def test_models_that_can_be_split_pass(tmp_path, model):
    args = of_four(tmp_path, parallelism_config={"dp_shard_size": 2, "tp_size": 2})
    translate(args, model=model).strategy.check(args, model)


def test_split_plan_is_found_for_tied_weights():
    model = Layers({"head": "colwise_gather_output"})
    model.head = nn.Linear(4, 7, bias=False)
    model.head.weight = model.words.weight
    styles = {name: style.name for name, style in _styles(model).items()}
    assert styles == {"head": "colwise_gather_output", "words": "embedding_rowwise"}


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
class TestModelsOfTransformers:
    @staticmethod
    def of(name: str, **changes):
        import transformers

        sizes = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "vocab_size": 31,
        }
        sizes |= {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "pad_token_id": 0,
            "bos_token_id": 0,
            **changes,
        }
        with torch.device("meta"):
            return getattr(transformers, f"{name}ForCausalLM")(
                getattr(transformers, f"{name}Config")(**sizes)
            )

    @pytest.mark.parametrize("name", ["Llama", "Qwen3", "Phi3", "Mistral", "Gemma2"])
    def test_their_plans_are_understood(self, name):
        model = self.of(name)
        assert sharding_problems(model, 2) == []
        assert tensor_parallel_plan(model) == model.tp_plan

    def test_heads_have_to_be_shared_out_evenly(self):
        assert (
            "tp_size=4 does not divide num_key_value_heads=2"
            in sharding_problems(self.of("Llama"), 4)[0]
        )

    def test_experts_are_refused_by_name(self):
        problems = sharding_problems(self.of("Mixtral"), 2)
        assert any(
            "'moe_tp_experts' (model.layers.*.mlp.experts), which is not supported" in problem
            for problem in problems
        )

    def test_split_plan_missing_in_a_model_is_reported(self):
        import transformers

        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=5)
        )
        assert (
            "GPT2LMHeadModel has no plan for tensor parallelism" in sharding_problems(model, 2)[0]
        )

    def test_styles_are_those_of_the_library(self):
        from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

        ours = set(STYLES) - {"colwise_rep", "rowwise_rep"}  # their names in earlier versions
        assert ours <= set(ALL_PARALLEL_STYLES.valid_keys())
