"""Files of checkpoints: read as the reference reads them."""

import logging
import types
import warnings

import numpy as np
import pytest
import torch
from same_values import same
from torch import nn
from transformers import trainer_pt_utils, trainer_utils

from lightrainer.facade.compat import checkpoints


def test_weights_in_several_files(tmp_path):
    """Read through either index; what is missing or too much is refused, or returned."""
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    torch.manual_seed(0)
    saved = BertModel(config)
    saved.save_pretrained(tmp_path, max_shard_size="1KB")
    made = []
    for here in (checkpoints, trainer_utils):
        torch.manual_seed(1)
        model = BertModel(config)
        keys = here.load_sharded_checkpoint(model, str(tmp_path))
        made.append([model.state_dict(), list(keys.missing_keys), list(keys.unexpected_keys)])
    assert same(dict(made[0][0]), dict(made[1][0]))
    assert made[0][1:] == made[1][1:]
    assert same(dict(made[0][0]), dict(saved.state_dict()))
    for here in (checkpoints, trainer_utils):
        with pytest.raises(RuntimeError, match=r"embeddings|weight"):
            here.load_sharded_checkpoint(nn.Linear(2, 2), str(tmp_path))
        loose = here.load_sharded_checkpoint(nn.Linear(2, 2), str(tmp_path), strict=False)
        assert sorted(loose.missing_keys) == ["bias", "weight"]
        with pytest.raises(ValueError, match="index"):
            here.load_sharded_checkpoint(model, str(tmp_path / "nothing"))


def test_small_things_of_checkpoints(tmp_path, caplog):
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("")
    checkpoints.remove_dummy_checkpoint(False, tmp_path, ["a"])
    assert (tmp_path / "a").exists()
    checkpoints.remove_dummy_checkpoint(True, tmp_path, ["a", "never there"])
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    torch.save({"numpy": np.random.RandomState(3).get_state()}, tmp_path / "rng.pth")
    with checkpoints.safe_globals():
        assert torch.load(tmp_path / "rng.pth", weights_only=True)["numpy"][0] == "MT19937"
    with pytest.raises(Exception, match=r"(?i)weights"):
        torch.load(tmp_path / "rng.pth", weights_only=True)
    module = types.SimpleNamespace(random=torch.random)
    state = torch.random.get_rng_state()
    drawn = torch.rand(3)
    checkpoints.set_rng_state_for_device("CPU", module, {"cpu": state}, False)
    assert torch.equal(torch.rand(3), drawn)
    with caplog.at_level(logging.ERROR, "lightrainer"):
        checkpoints.set_rng_state_for_device("CUDA", module, {}, False)
    assert "CUDA" in caplog.text


def test_warnings_that_were_caught():
    for here in (checkpoints, trainer_pt_utils):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("one", UserWarning, stacklevel=1)
            warnings.warn("two", FutureWarning, stacklevel=1)
        with warnings.catch_warnings(record=True) as again:
            warnings.simplefilter("always")
            here.reissue_pt_warnings(caught)
            here.reissue_pt_warnings(caught[1:])
        assert [one.category for one in again] == [FutureWarning]
