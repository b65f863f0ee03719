"""Weights of any module are saved and come back, also between the reference and us."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors import safe_open
from torch import nn

from lightrainer.lightning_modules.checkpoints import load_weights, problems, save_weights

pytestmark = pytest.mark.filterwarnings("error")


class Tied(nn.Module):
    """An embedding tied to the output layer, a transposed view, a slice of a larger buffer, an
    empty tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 6, bias=False)
        self.embedding = nn.Embedding(6, 4)
        self.embedding.weight = self.output.weight
        pool = torch.randn(20)
        self.register_buffer("part", pool[3:9])
        self.register_buffer("overlapping", pool[5:11])
        self.register_buffer("square", torch.randn(3, 3))
        self.register_buffer("turned", self.square.T)
        self.register_buffer("flat", self.square.view(-1))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("other_empty", torch.zeros(0, 2))
        self.register_buffer("number", torch.tensor(3))


class Untied(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.embedding.weight = nn.Parameter(torch.zeros(6, 4))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LSTM(8, 3))


def _tiny(name: str) -> Any:
    import transformers as tf

    small: dict[str, Any] = {"vocab_size": 16}
    if name == "gpt2":
        return tf.GPT2LMHeadModel(
            tf.GPT2Config(n_embd=8, n_head=2, n_layer=2, n_positions=8, **small)
        )
    if name == "bert":
        sizes = {
            "hidden_size": 8,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
        }
        return tf.BertForSequenceClassification(tf.BertConfig(**sizes, **small))
    if name == "t5":
        return tf.T5ForConditionalGeneration(
            tf.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, **small)
        )
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_local_experts": 2,
    }
    return tf.MixtralForCausalLM(
        tf.MixtralConfig(num_attention_heads=2, num_key_value_heads=1, **sizes, **small)
    )


MODELS = {"plain": _plain, "tied": Tied, "tied, in one that does not tie": Tied}
MODELS |= {name: lambda name=name: _tiny(name) for name in ("gpt2", "bert", "t5", "mixtral")}


def _same(first: nn.Module, second: nn.Module) -> bool:
    left, right = first.state_dict(), second.state_dict()
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


def _half(model: nn.Module) -> int:
    """Bytes of half of a model, so that it is saved in a few files."""
    return (
        sum(value.nbytes for value in {id(value): value for value in model.parameters()}.values())
        // 2
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_come_back(tmp_path: Path, name: str, sharded: bool):
    """The reference (5.3.0) leaves experts as they were, with no more than a warning: files have
    other names.
    """
    saved, loaded = MODELS[name](), (Untied if "not tie" in name else MODELS[name])()
    assert not _same(saved, loaded)
    save_weights(saved, tmp_path, max_shard_size=_half(saved) if sharded else "50GB")
    before = torch.get_rng_state()
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    assert problems(tmp_path, training_state=False) == []
    report = load_weights(loaded, tmp_path)
    assert _same(saved, loaded)
    assert report.missing == ()
    assert report.unexpected == ()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mask", [0o022, 0o007, 0o077])
@pytest.mark.parametrize("name", ["plain", "gpt2", "adapters"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_have_the_rights_of_other_new_files(tmp_path: Path, name: str, mask: int):
    """safetensors 0.8 lets only their owner read them. Earlier private files stay private."""
    model = _two_adapters() if name == "adapters" else MODELS[name]()
    private = tmp_path / "private.safetensors"
    private.touch(0o600)
    before = os.umask(mask)
    try:
        save_weights(model, tmp_path)
        if name != "adapters":
            save_weights(model, tmp_path / "shards", max_shard_size=_half(model))
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != private]
    assert len([path for path in files if path.suffix == ".safetensors"]) >= 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}
    assert private.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.rglob(".*"))


def _two_adapters() -> nn.Module:
    import peft

    config = peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True)
    model = peft.get_peft_model(_tiny("gpt2"), config)
    model.add_adapter("second", config)
    return model


def test_tied_weights_are_stored_once_and_documented_in_the_file(tmp_path: Path):
    model = Tied()
    save_weights(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "embedding.weight": "output.weight"}
        assert "embedding.weight" not in file.keys()  # noqa: SIM118 - it has no `in`
    plain_load = Tied()
    state_dict = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert plain_load.load_state_dict(state_dict, strict=False).unexpected_keys == []
    assert _same(model, plain_load)


def test_saving_again_replaces_weights_of_other_sizes(tmp_path: Path):
    for size in (200, "50GB", 300):
        model, loaded = _plain(), _plain()
        save_weights(model, tmp_path, max_shard_size=size)
        load_weights(loaded, tmp_path)
        assert _same(model, loaded)
        assert problems(tmp_path, training_state=False) == []


def test_model_whose_save_pretrained_writes_something_else_still_gets_weights(tmp_path: Path):
    class Custom(nn.Linear, PyTorchModelHubMixin):
        def save_pretrained(self, folder: str) -> None:
            Path(folder, "custom.txt").write_text("mine")

    for _ in range(2):
        model, loaded = Custom(2, 2), Custom(2, 2)
        save_weights(model, tmp_path)
        load_weights(loaded, tmp_path)
        assert _same(model, loaded)
    assert (tmp_path / "custom.txt").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_pickled_weights_are_loaded(tmp_path: Path, sharded: bool):
    """And nothing else is unpickled: tests/attacks/test_programs.py."""
    saved, loaded = _plain(), _plain()
    state_dict = saved.state_dict()
    files = {
        name: f"pytorch_model-{name}.bin" if sharded else "pytorch_model.bin" for name in state_dict
    }
    for file in set(files.values()):
        torch.save(
            {name: value for name, value in state_dict.items() if files[name] == file},
            tmp_path / file,
        )
    if sharded:
        (tmp_path / "pytorch_model.bin.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": files})
        )
    assert load_weights(loaded, tmp_path).missing == ()
    assert _same(saved, loaded)


def _two(*names: str, kind: type[nn.Module] = nn.ModuleDict) -> nn.Module:
    return kind({name: nn.Linear(2, 2) for name in names})


class Renaming(nn.ModuleDict):
    """Its files may call `b` by an older name."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in [name for name in state_dict if name.startswith(f"{prefix}old.")]:
            state_dict[name.replace("old.", "b.")] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


@pytest.mark.parametrize("size", ["50GB", 20])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_that_a_folder_lacks_are_an_error_that_names_them(
    tmp_path: Path, size: int | str, kind: str
):
    """With half of the weights loaded, training would continue with fresh ones. Nothing at all is
    loaded from a safetensors file.
    """
    saved = _two("a", "b")
    if kind == "bin":
        torch.save(saved.state_dict(), tmp_path / "pytorch_model.bin")
    else:
        save_weights(saved, tmp_path, max_shard_size=size)
    model = _two("a", "c")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"no values for 2 of 4 weights.*: c\.weight, c\.bias.*b\."
    ) as caught:
        load_weights(model, tmp_path)
    assert str(tmp_path) in str(caught.value)
    if kind == "safetensors":
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_may_be_lacking(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Those that the model names, as models of the reference do; or all of them, when asked for
    so.
    """
    saved = _two("a", "b")
    save_weights(saved, tmp_path)
    with caplog.at_level(logging.WARNING):
        report = load_weights(_two("a", "c"), tmp_path, strict=False)
    assert sorted(report.missing) == ["c.bias", "c.weight"]
    assert sorted(report.unexpected) == ["b.bias", "b.weight"]
    assert "has no values for c.weight" in caplog.text
    model = _two("a", "c")
    model._keys_to_ignore_on_load_missing = [r"^c\."]
    assert load_weights(model, tmp_path).missing == ()
    assert torch.equal(model["a"].weight, saved["a"].weight)
    model._keys_to_ignore_on_load_missing = [r"^c\.weight"]
    with pytest.raises(ValueError, match=r"1 of 4 weights of the model: c\.bias"):
        load_weights(model, tmp_path)


def test_weights_of_a_renaming_module_are_complete(tmp_path: Path):
    saved = _two("a", "old")
    save_weights(saved, tmp_path)
    model = _two("a", "b", kind=Renaming)
    load_weights(model, tmp_path)
    assert torch.equal(model["b"].weight, saved["old"].weight)
    with pytest.raises(ValueError, match=r"no values for 2 of 6 weights of the model: c"):
        load_weights(_two("a", "b", "c", kind=Renaming), tmp_path)


@pytest.mark.parametrize("size", ["50GB", 40])
def test_weights_of_another_shape_raise_by_name(tmp_path: Path, size: int | str):
    save_weights(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 7)), tmp_path, max_shard_size=size)
    with pytest.raises(
        ValueError, match=r"1\.weight: .*\[7, 2\]\) from checkpoint, .*\[5, 2\]\)"
    ) as caught:
        load_weights(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 5)), tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("size", ["50GB", 200])
def test_damaged_weights_are_an_error_that_names_the_file(tmp_path: Path, size: int | str):
    with pytest.raises(ValueError, match="no weights in"):
        load_weights(_plain(), tmp_path)
    save_weights(_plain(), tmp_path, max_shard_size=size)
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=file.name):
        load_weights(_plain(), tmp_path)


def test_weights_without_a_place_in_the_model_warn(tmp_path: Path, caplog):
    save_weights(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), tmp_path)
    assert set(load_weights(nn.Sequential(nn.Linear(2, 2)), tmp_path).unexpected) == {
        "1.weight",
        "1.bias",
    }
    assert "that the model does not have; they are ignored: 1." in caplog.text


def test_weights_of_another_pretrained_model_warn_and_change_nothing(tmp_path: Path):
    """Reading through the class must not put random values in the place of the model's own."""
    save_weights(_tiny("bert"), tmp_path)
    model = _tiny("gpt2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"has no values for \d+ of \d+ weights of the model: transformer\."
    ):
        load_weights(model, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
