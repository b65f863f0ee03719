"""What writes a model is chosen by its class, as in transformers, and what is written holds all
of its weights.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from helpers.trainer.tiny_trainings import arguments, make_trainer, tiny
from lightrainer import Trainer
from lightrainer.lightning_modules.models.wrappers import unwrap_model

SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(num_labels=3, **SIZES))


class Wrapper(nn.Module):
    """A head on a model of transformers, to which unknown attributes are forwarded."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(8, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.head(self.inner(input_ids).last_hidden_state[:, 0])
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Exporting(Wrapper):
    """Its method saves the inner model alone."""

    def save_pretrained(self, folder: str) -> None:
        self.inner.save_pretrained(folder)


class NamedSharded(Wrapper):
    """Attributes with names by which this package recognizes its own wrappers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.sharded = nn.Linear(1, 1)
        self.peft_config = {"default": None}


def with_lora() -> nn.Module:
    peft = pytest.importorskip("peft")
    return Wrapper(peft.get_peft_model(bert(), peft.LoraConfig(target_modules=["query"], r=1)))


MODELS = {
    "forwarding wrapper": lambda: Wrapper(bert()),
    "forwarding wrapper of an adapter": with_lora,
    "forwarding wrapper of a compiled model": lambda: Wrapper(
        torch.compile(bert(), backend="eager")
    ),
    "own save_pretrained for export": lambda: Exporting(bert()),
    "own attributes": lambda: NamedSharded(bert()),
}


def sentences() -> list[dict[str, Any]]:
    rows = torch.randint(0, 20, (8, 4), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": int(row[0]) % 3} for row in rows]


@pytest.mark.parametrize("model", MODELS)
def test_save_all_weights(tmp_path, model, caplog):
    options = {
        "train_dataset": sentences(),
        "eval_dataset": None,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    trainer = make_trainer(tmp_path, model=MODELS[model](), max_steps=1, **options)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    names = set(trainer.model.state_dict())
    for folder in ("checkpoint-1", "final"):
        assert set(load_file(tmp_path / folder / "model.safetensors")) == names
    assert "lacks" not in caplog.text
    resumed = make_trainer(tmp_path, model=MODELS[model](), max_steps=2, **options)
    assert resumed.train(resume_from_checkpoint=True).global_step == 2


def test_unwrap_model_stops_at_a_wrapper_of_a_compiled_model():
    wrapper = Wrapper(torch.compile(bert(), backend="eager"))
    assert unwrap_model(wrapper) is wrapper


class Noting:
    """Notes the folders that methods of user objects are given."""

    def __init__(self) -> None:
        self.folders: dict[str, Any] = {}

    def around(self, name: str, kind: type, method: str) -> type:
        """A subclass whose method notes its first argument."""
        original = getattr(kind, method)

        def noting(this: Any, folder: Any, *args: Any, **kwargs: Any) -> Any:
            self.folders[f"{name}.{method}"] = folder
            return original(this, folder, *args, **kwargs)

        return type(kind.__name__, (kind,), {method: noting})


WRITING = [
    "_save",
    "save_model",
    "_save_optimizer_and_scheduler",
    "_save_rng_state",
    "_load_from_checkpoint",
]


def test_folders_are_strings(tmp_path):
    noting = Noting()
    kind: type = Trainer
    for method in (*WRITING, "_load_optimizer_and_scheduler", "_load_rng_state"):
        kind = noting.around("trainer", kind, method)

    class Words:
        def save_pretrained(self, folder: Any) -> None:
            noting.folders["words.save_pretrained"] = folder

    def made(steps: int) -> Any:
        model = noting.around("model", BertForSequenceClassification, "save_pretrained")(
            BertConfig(num_labels=3, **SIZES)
        )
        options = {"train_dataset": sentences(), "eval_dataset": None, "processing_class": Words()}
        args = arguments(tmp_path, max_steps=steps, save_strategy="steps", save_steps=1)
        args.output_dir = Path(tmp_path)
        return make_trainer(tmp_path, kind, model=model, args=args, **options)

    made(1).train()
    made(2).train(resume_from_checkpoint=tmp_path / "checkpoint-1")
    assert len(noting.folders) == 9
    assert {name: type(folder) for name, folder in noting.folders.items()} == dict.fromkeys(
        noting.folders, str
    )


def with_layout(kind: type, *args: Any) -> Any:
    """A model whose state dict has an entry that is not a tensor."""

    class Extra(kind):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {**super().state_dict(*args, **kwargs), "layout": {"major": 1}}

    return Extra(*args)


@pytest.mark.parametrize("background", [None, 2**20])
@pytest.mark.parametrize("of_transformers", [False, True])
def test_state_dict_entry_that_is_not_a_tensor_is_named(tmp_path, background, of_transformers):
    if of_transformers:
        model = with_layout(BertForSequenceClassification, BertConfig(num_labels=3, **SIZES))
        trainer = make_trainer(
            tmp_path, model=model, train_dataset=sentences(), save_strategy="steps", save_steps=1
        )
    else:
        trainer = make_trainer(
            tmp_path, model=with_layout(type(tiny())), save_strategy="steps", save_steps=1
        )
    trainer.background_checkpoints = background
    with pytest.raises(TypeError, match="a dict under 'layout'"):
        trainer.train()
    with pytest.raises(TypeError, match="a dict under 'layout'"):
        trainer.save_model(str(tmp_path / "final"))


def leaving_out(*prefixes: str) -> type[Trainer]:
    """A Trainer whose checkpoints lack the weights of these names."""

    class Partial(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            state = self.model.state_dict()
            super()._save(
                output_dir, {name: state[name] for name in state if not name.startswith(prefixes)}
            )

    return Partial


def frozen() -> nn.Module:
    model = tiny()
    model.first.requires_grad_(False)
    return model


BEST = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}


def test_frozen_weights_left_out_are_warned_of_once(tmp_path, caplog):
    kind = leaving_out("first.")
    trainer = make_trainer(
        tmp_path, kind, model=frozen(), load_best_model_at_end=True, learning_rate=0.5, **BEST
    )
    trainer.train()
    best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    assert torch.equal(best["second.weight"], trainer.model.second.weight.cpu())
    resumed = make_trainer(tmp_path, kind, model=frozen(), num_train_epochs=2, **BEST)
    assert resumed.train(resume_from_checkpoint=True).global_step == 8
    warnings = [
        record.getMessage()
        for record in caplog.records
        if "The saved model lacks" in record.message
    ]
    assert len(warnings) == 2  # one for each Trainer
    assert "2 frozen weights: first.weight, first.bias" in warnings[0]


def test_trained_weights_left_out_are_warned_of_and_an_error_when_loaded(tmp_path, caplog):
    trainer = make_trainer(tmp_path, leaving_out("norm."), save_strategy="steps", save_steps=2)
    trainer.train()
    assert "lacks 2 trained weights: norm.weight, norm.bias" in caplog.text
    with pytest.raises(
        ValueError, match=r"has no values for 2 of 6 weights of the model: norm\.weight"
    ):
        make_trainer(tmp_path, num_train_epochs=2).train(resume_from_checkpoint=True)


def test_frozen_model_of_other_names_is_an_error(tmp_path):
    make_trainer(tmp_path, save_strategy="steps", save_steps=4).train()
    other = nn.Sequential(tiny()).requires_grad_(False)
    with pytest.raises(ValueError, match="has no values for 6 of 6 weights"):
        make_trainer(tmp_path, model=other)._load_from_checkpoint(str(tmp_path / "checkpoint-4"))


def gpt2() -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8))


def state_dict_replaced() -> Any:
    """The lines of a widespread script."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    of_model = model.state_dict
    model.state_dict = (
        lambda self, *_, **__: peft.get_peft_model_state_dict(self, of_model())
    ).__get__(model)
    return model


def adapter_added() -> Any:
    peft = pytest.importorskip("peft")
    model = gpt2()
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True), "mine")
    return model


@pytest.mark.parametrize("made", [state_dict_replaced, adapter_added])
def test_adapters_are_loaded_as_the_best_model_and_resumed(tmp_path, made, caplog):
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in sentences()]
    options = {
        "train_dataset": rows,
        "eval_dataset": rows,
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        **BEST,
    }

    def built(folder: str, steps: int, **changes: Any) -> Any:
        return make_trainer(tmp_path / folder, model=made(), max_steps=steps, **options, **changes)

    best = built("best", 4, load_best_model_at_end=True)
    best.train()
    assert best.evaluate()["eval_loss"] == pytest.approx(best.state.best_metric)
    assert "lacks" not in caplog.text

    whole = built("whole", 4)
    whole.train()
    built("parts", 2).train()
    resumed = built("parts", 4)
    resumed.train(resume_from_checkpoint=True)
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
