"""Modules of tasks: the loss where the model has none, the usual metrics, and generation."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import Net, make_trainer, pad, points, seeded, sentences
from lightrainer.lightning_modules import (
    CausalLMModule,
    DataModule,
    Seq2SeqModule,
    SequenceClassificationModule,
    TokenClassificationModule,
)


def validated(module, items, **options):
    data = DataModule(None, items, batch_size=4, **options)
    return make_trainer().validate(module, data, verbose=False)[0]


class Logits(nn.Module):
    """A table of logits; in one of the forms in which a model returns them."""

    def __init__(self, form="tensor", classes=11):
        super().__init__()
        self.form = form
        self.table = nn.Embedding(11, classes)

    def forward(self, input_ids):
        logits = self.table(input_ids)
        return {"tensor": logits, "tuple": (logits,), "dict": {"logits": logits}}[self.form]


class Pooled(nn.Module):
    """One row of numbers for each sample."""

    def __init__(self, outputs=1, config=None):
        super().__init__()
        self.layer = nn.Linear(4, outputs)
        if config is not None:
            self.config = config

    def forward(self, x):
        return self.layer(x)


class TestCausal:
    @pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
    def test_loss_and_perplexity_of_the_next_token(self, form):
        model, texts = seeded(Logits, form), sentences(10, seed=3)
        logged = validated(CausalLMModule(model), texts, collate_fn=pad)
        batch = pad(texts)
        logits = model.table(batch["input_ids"]).detach()
        whole = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
        )
        assert logged["val_perplexity"] == pytest.approx(math.exp(whole.item()), rel=1e-5)
        assert logged["val_loss"] == pytest.approx(whole.item(), abs=0.3), (
            "a mean over batches, each by its samples"
        )

    def test_smoothed(self):
        """Shifted, as labels are."""
        model, texts = seeded(Logits), sentences(4)
        logged = validated(
            CausalLMModule(model, label_smoothing=0.1, metrics=False), texts, collate_fn=pad
        )
        batch = pad(texts)
        logits = model.table(batch["input_ids"]).detach()[:, :-1].flatten(0, 1)
        expected = functional.cross_entropy(
            logits, batch["labels"][:, 1:].flatten(), label_smoothing=0.1
        )
        assert logged["val_loss"] == pytest.approx(expected.item())


class TestSequences:
    def test_task_module_number_of_classes_from_the_config(self):
        model = seeded(Net)
        model.config = SimpleNamespace(num_labels=3)
        assert "val_accuracy" in validated(SequenceClassificationModule(model), points(8))
        del model.config
        assert set(validated(SequenceClassificationModule(model), points(8))) == {"val_loss"}, (
            "unknown"
        )

    def test_numbers(self):
        items = [{"x": item["x"], "labels": item["x"].sum()} for item in points(10)]
        module = SequenceClassificationModule(seeded(Pooled), num_labels=1)
        logged = validated(module, items)
        with torch.no_grad():
            error = [float(module.model(item["x"])[0] - item["labels"]) ** 2 for item in items]
        expected = pytest.approx(sum(error) / 10, rel=1e-5)
        assert (logged["val_mse"], logged["val_loss"]) == (expected, expected)

    def test_task_module_with_several_labels(self):
        items = [{"x": item["x"], "labels": (item["x"][:3] > 0).float()} for item in points(10)]
        module = SequenceClassificationModule(
            seeded(
                Pooled, 3, SimpleNamespace(num_labels=3, problem_type="multi_label_classification")
            )
        )
        logged = validated(module, items)
        x, labels = (torch.stack([item[name] for item in items]) for name in ("x", "labels"))
        logits = module.model(x).detach()
        assert logged["val_loss"] == pytest.approx(
            functional.binary_cross_entropy_with_logits(logits, labels).item()
        )
        right = ((logits > 0) == labels.bool()).float()
        assert logged["val_accuracy"] == pytest.approx(right.mean(0).mean().item())


class TestTokens:
    def test_loss_and_metrics_without_ignored_labels(self):
        texts = sentences(10, seed=3)

        def collate(items):
            batch = pad(items)
            return {
                **batch,
                "labels": torch.where(batch["labels"] == -100, -100, batch["labels"] % 3),
            }

        module = TokenClassificationModule(seeded(Logits, "tensor", 3), num_labels=3)
        logged = validated(module, texts, collate_fn=collate)
        batch = collate(texts)
        logits = module.model(batch["input_ids"]).detach()
        counts = batch["labels"] != -100
        right = (logits.argmax(-1) == batch["labels"])[counts].float().mean().item()
        assert logged["val_accuracy"] == pytest.approx(right)
        assert 0 < logged["val_f1"] < 1


class Echo(nn.Module):
    """Generates its input after the token that starts a sequence; its loss is that of a table."""

    class generation_config:  # noqa: N801 - an attribute
        decoder_start_token_id = 0
        pad_token_id = 0
        max_length = None
        max_new_tokens = None

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 11)
        self.calls = []

    def generate(self, input_ids, length=None, beams=1):
        self.calls.append((length, beams))
        start = torch.zeros_like(input_ids[:, :1])
        return torch.cat([start, input_ids if length is None else input_ids[:, :length]], 1)

    def forward(self, input_ids, labels=None):
        logits = self.table(input_ids)
        return {
            "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "logits": logits,
        }


class TestSeq2Seq:
    def test_metrics_are_of_generated_tokens(self):
        """An echo is always right; token by token, without the one that starts it, padding left
        out.
        """
        module = Seq2SeqModule(Echo(), metrics={"acc": MulticlassAccuracy(11, average="micro")})
        logged = validated(module, sentences(10, seed=3), collate_fn=pad)
        assert logged["val_acc"] == 1
        assert logged["val_loss"] > 1, "while the loss is that of a forward pass"
        cut = Seq2SeqModule(
            Echo(),
            generation={"length": 1},
            metrics={"acc": MulticlassAccuracy(11, average="micro")},
        )
        texts = sentences(10, seed=3)
        right = 10 / sum(len(item["input_ids"]) for item in texts)
        assert validated(cut, texts, collate_fn=pad)["val_acc"] == pytest.approx(right)
        assert set(cut.model.calls) == {(1, 1)}

    def test_predictions(self):
        """Predictions are what `generate` returned; options of a call go before those of the
        module.
        """
        module = Seq2SeqModule(Echo(), generation={"beams": 3})
        data = DataModule(predict_dataset=sentences(6), collate_fn=pad, batch_size=3)
        batches = make_trainer().predict(module, data)
        assert [len(batch) for batch in batches] == [3, 3]
        assert (batches[0][:, 0] == 0).all()
        module.generate(pad(sentences(2)), beams=5)
        assert [beams for _, beams in module.model.calls] == [3, 3, 5]

    def test_metrics_of_the_training_are_of_likely_tokens(self):
        metrics = MulticlassAccuracy(11, average="micro")
        module = Seq2SeqModule(
            Echo(), optimizer={"learning_rate": 0.5}, metrics=metrics, train_metrics=True
        )
        trainer = make_trainer(max_epochs=10)
        trainer.fit(module, DataModule(sentences(20), sentences(5), collate_fn=pad, batch_size=4))
        assert trainer.callback_metrics["train_MulticlassAccuracy"] > 0.9
        assert len(module.model.calls) == 10 * 2

    def test_task_module_with_a_transformers_model(self, tmp_path):
        """A real one: validation generates, with the settings of the module."""
        transformers = pytest.importorskip("transformers")
        sizes = {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 1,
            "num_heads": 2,
            "vocab_size": 11,
        }
        config = transformers.T5Config(
            **sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0
        )
        metrics = {"acc": MulticlassAccuracy(11, average="micro")}
        generation = {"max_new_tokens": 4, "num_beams": 2}
        module = Seq2SeqModule(
            transformers.T5ForConditionalGeneration(config), metrics=metrics, generation=generation
        )
        trainer = make_trainer(max_epochs=1)
        trainer.fit(module, DataModule(sentences(8), sentences(4), collate_fn=pad, batch_size=4))
        assert "val_acc" in trainer.callback_metrics
        assert module.generate(pad(sentences(3))).shape == (3, 5)
