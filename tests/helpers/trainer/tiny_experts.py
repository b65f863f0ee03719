"""A mixture of experts with a few hundred weights."""

import torch


def mixture_of_experts(seed=0, **settings):
    """Return a model whose loss has a part that balances its experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=True,
        **settings,
    )
    torch.manual_seed(seed)
    return MixtralForCausalLM(config)
