"""Save and load adapters, with PEFT itself on the other side."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import LlamaConfig, LlamaForCausalLM, ResNetConfig, ResNetForImageClassification

from lightrainer.lightning_modules.checkpoints import (
    load_weights,
    save_weights,
    saved_weights,
    tensor_bytes,
)
from lightrainer.lightning_modules.checkpoints.sharded_files import (
    read_model_parts,
    save_model_parts,
)
from lightrainer.lightning_modules.checkpoints.sharded_reading import read_table

peft = pytest.importorskip("peft")


def made(seed: int, **options) -> peft.PeftModel:
    torch.manual_seed(3)
    base = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4))
    torch.manual_seed(seed)
    config = {"r": 2, "target_modules": ["0"], "init_lora_weights": False, **options}
    model = peft.get_peft_model(base, peft.LoraConfig(**config))
    model.add_adapter("ref", peft.LoraConfig(**config))
    return model


def same(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.state_dict().items(), right.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_peft_reads_what_is_saved(tmp_path: Path):
    model = made(1, modules_to_save=["1"])
    save_weights(model, tmp_path)
    base = made(2).unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path, is_trainable=True)
    again.load_adapter(tmp_path / "ref", "ref")
    assert same(model, again)


def test_adapters_alone_count_for_the_size_of_a_checkpoint(tmp_path: Path):
    """Of a large model they are a thousandth: there is room on the disk, and nothing large to
    copy.
    """
    model = made(1)
    size = tensor_bytes(saved_weights(model, model.state_dict(keep_vars=True)))
    assert size == 2 * 4 * (2 * 40 + 40 * 2)
    save_weights(model, tmp_path)
    files = [
        tmp_path / "adapter_model.safetensors",
        tmp_path / "ref" / "adapter_model.safetensors",
    ]
    assert size < sum(file.stat().st_size for file in files) < tensor_bytes(model.state_dict())


def decoder(config: "peft.PeftConfig") -> peft.PeftModel:
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return peft.get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)), config)


TWO_LAYERS = {"target_modules": ["q_proj", "v_proj"]}
RANKS = {"init_r": 4, "target_r": 3, "total_step": 3, "deltaT": 1, "tinit": 0, "tfinal": 1}
VECTORS = {"r": 2, "num_vectors": 4, "vector_length": 4, "topk": 2, **TWO_LAYERS}
PROMPT = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 2}
CONTEXT = {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1]}
KINDS = {
    "adalora": lambda: peft.AdaLoraConfig(**RANKS, **TWO_LAYERS),
    "biases": lambda: peft.LoraConfig(r=2, bias="all", modules_to_save=["lm_head"], **TWO_LAYERS),
    "context-aware prompt": lambda: peft.CPTConfig(task_type="CAUSAL_LM", **CONTEXT),
    "prefix": lambda: peft.PrefixTuningConfig(
        prefix_projection=True, encoder_hidden_size=4, **PROMPT
    ),
    "prompt": lambda: peft.PromptTuningConfig(**PROMPT),
    "shared vectors": lambda: peft.VBLoRAConfig(**VECTORS),
    "shared vectors, the best": lambda: peft.VBLoRAConfig(save_only_topk_weights=True, **VECTORS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_every_kind_load_all_trained_weights(tmp_path: Path, kind: str):
    """In the model that saved them, as the best one, and in another one, to resume; PEFT alone
    loses some of these.
    """
    model = decoder(KINDS[kind]())
    rows = torch.randint(0, 20, (2, 4), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 4):
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        if kind == "adalora":
            model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
    save_weights(model, tmp_path)
    trained = {
        name: weight.detach().clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    for loaded in (model, decoder(KINDS[kind]())):
        with torch.no_grad():
            for name in trained:
                loaded.get_parameter(name).add_(1)
        load_weights(loaded, tmp_path)
        assert all(
            torch.equal(loaded.get_parameter(name), weight) for name, weight in trained.items()
        )


def test_adapters_save_only_weights_that_peft_leaves_out(tmp_path: Path):
    """A file of every adapter would be as large as that of PEFT."""
    for kind in ("biases", "prompt", "shared vectors"):
        save_weights(decoder(KINDS[kind]()), tmp_path / kind)
    assert not list(tmp_path.glob("*/trained_beside_adapter.safetensors"))


def classifier(seed: int) -> ResNetForImageClassification:
    torch.manual_seed(seed)
    sizes = {"num_channels": 1, "embedding_size": 4, "hidden_sizes": [4], "depths": [1]}
    return ResNetForImageClassification(ResNetConfig(**sizes))


def layers() -> "peft.LoraConfig":
    return peft.LoraConfig(r=1, target_modules=["convolution"], init_lora_weights=False)


def with_peft(seed: int) -> nn.Module:
    model = peft.get_peft_model(classifier(seed), layers())
    model.add_adapter("other", layers())
    return model


def with_added(seed: int, *names: str) -> nn.Module:
    model = classifier(seed)
    for name in names or ("mine", "other"):
        model.add_adapter(layers(), name)
    model.set_adapter("mine")
    return model


@pytest.mark.filterwarnings("ignore:Already found a .peft_config. attribute:UserWarning")
@pytest.mark.parametrize("build", [with_peft, with_added])
def test_adapters_load_all_that_a_training_changes(tmp_path: Path, build):
    """Adapters, active or not, trained weights of the base, and the running statistics of its
    batch norm.
    """
    model = build(1)
    head = [name for name in model.state_dict() if "classifier" in name]
    for name in head:
        model.get_parameter(name).requires_grad_(True)
    model.train()(pixel_values=torch.randn(4, 1, 16, 16))
    save_weights(model, tmp_path)

    loaded = build(2)
    load_weights(loaded, tmp_path)
    changed = [
        name
        for name in model.state_dict()
        if "lora" in name or "running" in name or "tracked" in name
    ]
    # in each of four layers the matrices of two adapters, and its statistics
    assert len(changed) == 4 * (2 * 2 + 3)
    weights, expected = loaded.state_dict(), model.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in changed + head)
    frozen = next(name for name in expected if "convolution.base_layer" in name)
    assert not torch.equal(weights[frozen], expected[frozen])


@pytest.mark.filterwarnings("ignore:Already found a .peft_config. attribute:UserWarning")
@pytest.mark.parametrize("build", [with_peft, with_added])
def test_trained_weights_of_the_base_that_are_not_there_are_an_error(tmp_path: Path, build):
    save_weights(build(1), tmp_path)
    model = build(2)
    name = next(name for name in model.state_dict() if "classifier" in name)
    model.get_parameter(name).requires_grad_(True)
    with pytest.raises(ValueError, match=f"has no values for 1 of .*: {re.escape(name)}"):
        load_weights(model, tmp_path)


@pytest.mark.filterwarnings("ignore:Already found a .peft_config. attribute:UserWarning")
def test_missing_added_adapter_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_weights(with_added(1, "mine"), tmp_path)
    load_weights(with_added(2), tmp_path)
    assert "has no weights for the adapter 'other', which keeps its present values" in caplog.text
    assert caplog.text.count("has no weights") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_loading_changes_values_only(tmp_path: Path, dtype: torch.dtype):
    """Not what is trained, nor the format, nor whether dropout is on."""
    save_weights(made(1).to(dtype), tmp_path)
    model = made(2).to(dtype).train()
    model.set_requires_grad("ref", True)
    model.set_requires_grad("default", False)
    before = [(weight.requires_grad, weight.dtype) for weight in model.parameters()]
    load_weights(model, tmp_path)
    assert [(weight.requires_grad, weight.dtype) for weight in model.parameters()] == before
    assert all(module.training for module in model.modules())
    assert model.active_adapters == ["default"]
    assert same(model, made(1).to(dtype))


def test_adapters_layer_without_an_adapter_raises(tmp_path: Path):
    save_weights(made(1), tmp_path)
    with pytest.raises(
        ValueError,
        match=r"has no values for 4 of .*: base_model\.model\.1\.lora_A\.default\.weight",
    ):
        load_weights(made(2, target_modules=["0", "1"]), tmp_path)


def test_surplus_adapter_is_not_loaded_and_warned_of(tmp_path: Path, caplog):
    save_weights(made(1), tmp_path)
    model = made(2)
    model.delete_adapter("ref")
    load_weights(model, tmp_path)
    assert "has adapters that the model does not have; they are ignored: ref" in caplog.text


def test_unknown_adapter_raises(tmp_path: Path):
    save_weights(made(1), tmp_path)
    shutil.rmtree(tmp_path / "ref")
    with pytest.raises(
        ValueError, match="no weights for the adapter 'ref' of the model, only for 'default'"
    ):
        load_weights(made(2), tmp_path)
    with pytest.raises(ValueError, match="holds only the weights of an adapter"):
        load_weights(nn.Linear(1, 1), tmp_path)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_parts_have_the_names_of_peft_too(tmp_path: Path):
    """Parts have the names that accelerate looks for; a reader of all weights gets each once."""
    model = made(1, modules_to_save=["1"])
    save_model_parts(model, tmp_path)
    assert read_model_parts(tmp_path).keys() == model.state_dict().keys()
    names = {
        name.removeprefix("model.")
        for name in read_table(tmp_path / "pytorch_model_fsdp_0").state_dict_metadata
    }
    assert peft.get_peft_model_state_dict(model).keys() < names
    again = made(2, modules_to_save=["1"])
    assert load_weights(again, tmp_path).unexpected == ()
    assert same(model, again)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_parts_of_accelerate_have_one_adapter(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The active one, by the names of PEFT; of a second one trained weights are lacking, and the
    base's are not.
    """
    model = made(1, modules_to_save=["1"])
    save(
        {"model": peft.get_peft_model_state_dict(model)},
        checkpoint_id=tmp_path / "pytorch_model_fsdp_0",
    )
    again = made(2, modules_to_save=["1"])
    load_weights(again, tmp_path)
    assert "contains only the active adapter; base_model.model.0.lora_A.ref.weight, " in caplog.text
    for name, weight in again.named_parameters():
        weight.requires_grad_(".lora_" in name)
    with pytest.raises(
        ValueError, match=r"has no values for 2 of .*: base_model\.model\.0\.lora_A\.ref\.weight"
    ):
        load_weights(again, tmp_path)
    again.delete_adapter("ref")
    load_weights(again, tmp_path)
    model.delete_adapter("ref")
    assert same(model, again)
