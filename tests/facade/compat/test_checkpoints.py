"""Checkpoints in several files are loaded as the reference loads them."""

import pytest
import torch
from torch import nn
from transformers import trainer_utils

from helpers.comparing.bit_differences import same_bits
from lightrainer.facade.compat import checkpoints


def test_weights_in_several_files(tmp_path):
    """Read through either index; what is missing or too much is refused, or returned."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    torch.manual_seed(0)
    saved = BertModel(config)
    saved.save_pretrained(tmp_path, max_shard_size="1KB")
    results = []
    for module in (checkpoints, trainer_utils):
        torch.manual_seed(1)
        model = BertModel(config)
        keys = module.load_sharded_checkpoint(model, str(tmp_path))
        results.append([model.state_dict(), list(keys.missing_keys), list(keys.unexpected_keys)])
    assert same_bits(dict(results[0][0]), dict(results[1][0]))
    assert results[0][1:] == results[1][1:]
    assert same_bits(dict(results[0][0]), dict(saved.state_dict()))
    for module in (checkpoints, trainer_utils):
        with pytest.raises(RuntimeError, match=r"embeddings|weight"):
            module.load_sharded_checkpoint(nn.Linear(2, 2), str(tmp_path))
        loose = module.load_sharded_checkpoint(nn.Linear(2, 2), str(tmp_path), strict=False)
        assert sorted(loose.missing_keys) == ["bias", "weight"]
        with pytest.raises(ValueError, match="index"):
            module.load_sharded_checkpoint(model, str(tmp_path / "nothing"))
